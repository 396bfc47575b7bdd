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
