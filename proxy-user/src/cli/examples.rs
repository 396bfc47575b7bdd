// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The examples below each command's `--help`.

pub(super) const SERVICES: &str = "\
Examples:
  portolan services                          every address and port
  portolan services -n shop cart             of one service
  portolan services --address 10.96.0.10     whose address is this?
  portolan services -o jsonpath='{.items[?(@.internalEndpoints==0)].service}'   without endpoints";

pub(super) const BACKENDS: &str = "\
Examples:
  portolan backends shop/cart:http           the endpoints of one port
  portolan backends --address 10.40.1.0/24 --count   how many endpoints are in a range?";

pub(super) const FLOWS: &str = "\
Examples:
  portolan flows shop/cart                   who talks to this service?
  portolan flows --client 10.40.1.9 --watch  what does this client do?
  portolan flows --state unanswered --sort-by idle   whom does nobody answer?
  portolan flows --protocol udp --count      how many are there?";

pub(super) const SOCKETS: &str = "\
Examples:
  portolan sockets shop/cart -o wide         which processes use this service?
  portolan sockets --backend 10.40.1.20      who still talks to this endpoint?";

pub(super) const AFFINITY: &str = "\
Examples:
  portolan affinity shop/cart                which client goes where?
  portolan affinity --address 10.40.1.9 -o json";

pub(super) const STATUS: &str = "\
Examples:
  portolan status                            is all well on this node?
  portolan status -o name                    one word: healthy, unhealthy or unreachable
  portolan status -o jsonpath='{.problems[*]}'";

pub(super) const COUNTERS: &str = "\
Examples:
  portolan counters dropped --nonzero        what was dropped, and why
  portolan counters --watch --nonzero        rates";

pub(super) const MAPS: &str = "\
Examples:
  portolan maps --sort-by memory-kib         where is the kernel's memory?
  portolan maps flows                        how full is the flow table?";

pub(super) const WARNINGS: &str = "\
Examples:
  portolan warnings                          what should be looked after?
  portolan warnings cart -o json             what of one service?";

pub(super) const CONFIG: &str = "\
Examples:
  portolan config --changed                  what is not the default, and why
  portolan config conntrack                  settings of one section
  portolan config --config FILE              what would this file mean?";

pub(super) const DUMP: &str = "\
Examples:
  portolan dump node-a.tar.gz                look into it before you send it: it names services and addresses";

pub(super) const COMPLETIONS: &str = "\
Examples:
  portolan completions bash > /etc/bash_completion.d/portolan
  portolan completions zsh > ~/.zfunc/_portolan";

pub(super) const CLEANUP: &str = "\
Examples:
  portolan cleanup --dry-run                 what would be removed?
  portolan cleanup --drain                   once the last connection has ended";
