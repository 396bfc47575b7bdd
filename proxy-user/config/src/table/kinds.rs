// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which values each setting may have, and the field that stores them; `settings.md` has the texts.

use std::net::{Ipv4Addr, SocketAddr};

use linux::interfaces::PodInterfaces;
use proxy_common::masquerade::PortRanges;

use super::LOG_LEVEL;
use crate::{
    Config, LocalDetection, Mode, NodePortAddresses,
    setting::{Choice, Kind, Read, Value},
    values::{self, Problem, Seconds},
};

pub(super) fn kind(key: &str) -> Option<Kind> {
    Some(match key {
        // Its text is the first, because the defaults of others depend on it.
        "mode" => Kind::Special(Read::Text(|draft, mode| draft.set_mode(mode)), |config| {
            text(config.mode.word())
        }),
        "clientConnection.kubeconfig" => Kind::Special(
            Read::Any(|draft, file| draft.config.kubeconfig = Some(file.into())),
            |config| text(config.kubeconfig.as_ref()?.display()),
        ),
        "hostnameOverride" => Kind::Special(
            Read::Any(|draft, name| draft.config.hostname_override = Some(name.into())),
            |config| config.hostname_override.as_ref().and_then(text),
        ),
        "portolan.pinDirectory" => Kind::Special(
            Read::Any(|draft, directory| draft.config.pin_directory = directory.into()),
            |config| text(config.pin_directory.display()),
        ),
        "portolan.abandonedAfter" => Kind::Special(
            Read::Text(|draft, text| {
                let remedy = "is not a duration; write it like 6h0m0s, or 0s for never";
                let duration = values::duration(text).ok_or_else(|| Problem::new(text, remedy))?;
                let whole = duration.as_secs() + u64::from(duration.subsec_nanos() != 0);
                draft.config.abandoned_after = u32::try_from(whole).unwrap_or(u32::MAX);
                Ok(())
            }),
            |config| text(values::go_duration(config.abandoned_after)),
        ),
        "portolan.interfaces" => Kind::Patterns(|config| &mut config.interfaces),
        // Its text is before those of the two whose defaults depend on it.
        "bindAddress" => Kind::Special(
            Read::Text(|draft, text| values::bind_address(text, &mut draft.config)),
            |config| text(config.bind_address),
        ),
        "bindAddressHardFail" => Kind::Bool(|config| &mut config.bind_address_hard_fail),
        "healthzBindAddress" => Kind::Address(|config| &mut config.healthz_bind_address),
        "portolan.probeBindAddress" => Kind::Special(
            Read::Text(|draft, text| {
                let mut address = SocketAddr::from((Ipv4Addr::LOCALHOST, 10247));
                values::address(text, &mut address)?;
                draft.config.probe_bind_address = Some(address);
                Ok(())
            }),
            |config| config.probe_bind_address.and_then(text),
        ),
        "metricsBindAddress" => Kind::Address(|config| &mut config.metrics_bind_address),
        "clusterCIDR" => Kind::Special(
            Read::Text(|draft, text| {
                values::pod_ranges(text.split(',')).map(|all| draft.config.cluster_cidr = all)
            }),
            |config| {
                let ranges = &config.cluster_cidr;
                let texts: Vec<_> = ranges.iter().map(ToString::to_string).collect();
                (!texts.is_empty()).then(|| Value::Text(texts.join(",")))
            },
        ),
        "detectLocal.clusterCIDRs" => Kind::Special(
            Read::List(|draft, texts| {
                if !texts.is_empty() {
                    let texts = texts.iter().map(String::as_str);
                    draft.config.cluster_cidr = values::pod_ranges(texts)?;
                }
                Ok(())
            }),
            |_| None,
        ),
        "detectLocalMode" => Kind::Special(
            Read::Any(|draft, mode| draft.detect_local_mode = mode.into()),
            |config| text(detection(config).0),
        ),
        "detectLocal.bridgeInterface" => Kind::Special(
            Read::Any(|draft, name| draft.bridge_interface = name.into()),
            |config| detection(config).1.and_then(text),
        ),
        "detectLocal.interfaceNamePrefix" => Kind::Special(
            Read::Any(|draft, prefix| draft.interface_name_prefix = prefix.into()),
            |config| detection(config).2.and_then(text),
        ),
        "portolan.serviceProxyName" => Kind::Special(
            Read::Text(|draft, name| draft.set_service_proxy_name(name)),
            |config| config.service_proxy_name.as_ref().and_then(text),
        ),
        "nodePortAddresses" => Kind::Special(
            Read::List(|draft, list| values::node_port_addresses(&mut draft.config, list)),
            |config| {
                Some(match &config.node_port_addresses {
                    NodePortAddresses::Every => Value::List(Vec::new()),
                    NodePortAddresses::Primary => Value::list(&["primary"]),
                    NodePortAddresses::Within(ranges) => Value::list(ranges),
                })
            },
        ),
        "iptables.localhostNodePorts" => Kind::Bool(|config| &mut config.localhost_node_ports),
        "portolan.unallocatedClusterIPs" => {
            Kind::Choice(|config| &mut config.unallocated_cluster_ips)
        }
        "portolan.answerPing" => Kind::Bool(|config| &mut config.answer_ping),
        "portolan.serveLinkLocal" => Kind::Bool(|config| &mut config.serve_link_local),
        "portolan.gatewayAPI" => Kind::Bool(|config| &mut config.gateway_api),
        "portolan.gatewayServices" => Kind::Bool(|config| &mut config.gateway_services),
        "portolan.selection" => Kind::Choice(|config| &mut config.selection),
        "portolan.clientAddress" => Kind::Choice(|config| &mut config.client_address),
        "portolan.clientAddressKeys" => Kind::Special(
            Read::Any(|draft, file| {
                draft.config.client_address_keys = (!file.is_empty()).then(|| file.into());
            }),
            |config| text(config.client_address_keys.as_ref()?.display()),
        ),
        "portolan.clientAddressPort" => Kind::Special(
            Read::Number(|draft, port| {
                draft.config.client_address_port = port.clamp(1, 65_535) as u16;
            }),
            |config| Some(Value::Number(config.client_address_port.into())),
        ),
        "portolan.agentsService" => Kind::Special(
            Read::Text(|draft, text| {
                draft.config.agents_service = Some(values::object_name(text)?);
                Ok(())
            }),
            |config| config.agents_service.as_ref().and_then(text),
        ),
        "portolan.connectionsOfGoneEndpoints" => Kind::Choice(|config| &mut config.gone_endpoints),
        "portolan.ownAddresses" => Kind::Special(
            Read::List(|draft, texts| {
                values::own_addresses(texts).map(|all| draft.config.own_addresses = all)
            }),
            |config| Some(Value::list(&config.own_addresses)),
        ),
        "nftables.masqueradeAll" => Kind::Special(
            Read::Bool(|draft, on| draft.nftables_masquerade_all = on),
            |config| masquerade_all(config, config.mode == Mode::Nftables),
        ),
        "iptables.masqueradeAll" => Kind::Special(
            Read::Bool(|draft, on| draft.iptables_masquerade_all = on),
            |config| masquerade_all(config, config.mode != Mode::Nftables),
        ),
        "iptables.masqueradeBit" => Kind::Special(
            Read::Number(|draft, bit| draft.iptables_masquerade_bit = Some(bit)),
            masquerade_bit,
        ),
        "nftables.masqueradeBit" => Kind::Special(
            Read::Number(|draft, bit| draft.nftables_masquerade_bit = Some(bit)),
            masquerade_bit,
        ),
        "portolan.masquerade" => Kind::Choice(|config| &mut config.masquerade),
        "portolan.masqueradePorts" => Kind::Special(
            Read::List(|draft, texts| {
                values::masquerade_ports(texts).map(|all| draft.config.masquerade_ports = all)
            }),
            |config| {
                let PortRanges([a, b, c, d]) = config.masquerade_ports;
                let ranges = [(a, b), (c, d)];
                let used = ranges.iter().filter(|(first, _)| *first != 0);
                let texts = used.map(|(first, last)| format!("{first}-{last}"));
                Some(Value::List(texts.collect()))
            },
        ),
        "portolan.socketBalancing" => Kind::Choice(|config| &mut config.socket_balancing),
        "portolan.socketExceptions" => Kind::Patterns(|config| &mut config.socket_exceptions),
        "portolan.forwarding" => Kind::Choice(|config| &mut config.forwarding),
        "portolan.xdp" => Kind::Choice(|config| &mut config.xdp),
        "portolan.xdpInterfaces" => Kind::Patterns(|config| &mut config.xdp_interfaces),
        "portolan.acceptForward" => Kind::Bool(|config| &mut config.accept_forward),
        "conntrack.tcpEstablishedTimeout" => Kind::Seconds(|config| Seconds {
            idle: &mut config.idle_times.tcp_established,
            conntrack: &mut config.conntrack.tcp_established,
        }),
        "conntrack.tcpCloseWaitTimeout" => Kind::Seconds(|config| Seconds {
            idle: &mut config.idle_times.tcp_close_wait,
            conntrack: &mut config.conntrack.tcp_close_wait,
        }),
        "conntrack.udpTimeout" => Kind::Seconds(|config| Seconds {
            idle: &mut config.idle_times.udp,
            conntrack: &mut config.conntrack.udp,
        }),
        "conntrack.udpStreamTimeout" => Kind::Seconds(|config| Seconds {
            idle: &mut config.idle_times.udp_stream,
            conntrack: &mut config.conntrack.udp_stream,
        }),
        "conntrack.maxPerCore" => Kind::Connections(
            |config| &mut config.conntrack.max_per_core,
            "; `0` leaves nf_conntrack as it is",
        ),
        "conntrack.min" => Kind::Connections(|config| &mut config.conntrack.min, ""),
        "conntrack.tcpBeLiberal" => Kind::Bool(|config| &mut config.conntrack.tcp_be_liberal),
        "portolan.maps.memory" => Kind::Special(
            Read::Number(|draft, mib| {
                draft.config.map_memory = u32::try_from(mib.max(0)).unwrap_or(u32::MAX);
            }),
            |config| (config.map_memory != 0).then(|| Value::Number(config.map_memory.into())),
        ),
        "portolan.maps.frontends" => Kind::Entries(|config| &mut config.capacities.frontends),
        "portolan.maps.records" => Kind::Entries(|config| &mut config.capacities.records),
        "portolan.maps.slots" => Kind::Entries(|config| &mut config.capacities.slots),
        "portolan.maps.backends" => Kind::Entries(|config| &mut config.capacities.backends),
        "portolan.maps.flows" => Kind::Entries(|config| &mut config.capacities.flows),
        "portolan.maps.affinity" => Kind::Entries(|config| &mut config.capacities.affinity),
        "portolan.maps.sockets" => Kind::Entries(|config| &mut config.capacities.sockets),
        "portolan.maps.sourceRanges" => {
            Kind::Entries(|config| &mut config.capacities.source_ranges)
        }
        // Its text is before that of the level, which overrides it.
        "logging.verbosity" => Kind::Special(
            Read::Number(|draft, verbosity| {
                if verbosity > 0 {
                    values::level_of_verbosity(verbosity).clone_into(&mut draft.config.log_level);
                }
            }),
            // The log level is written instead.
            |_| None,
        ),
        "logging.format" => Kind::Choice(|config| &mut config.log_format),
        LOG_LEVEL => Kind::Special(
            Read::Text(|draft, level| {
                values::log_level(level).map(|level| draft.config.log_level = level)
            }),
            |config| text(&config.log_level),
        ),
        "portolan.logPackets" => Kind::Bool(|config| &mut config.log_packets),
        "portolan.servicesWithMetrics" => Kind::Special(
            Read::Number(|draft, count| {
                draft.config.services_with_metrics = u32::try_from(count).unwrap_or(0);
            }),
            |config| Some(Value::Number(config.services_with_metrics.into())),
        ),
        "portolan.objectEvents" => Kind::Bool(|config| &mut config.object_events),
        _ => return None,
    })
}

fn text(value: impl ToString) -> Option<Value> {
    Some(Value::Text(value.to_string()))
}

/// Returns the mode by which pods are recognised, and the bridge or the prefix that it needs.
fn detection(config: &Config) -> (&'static str, Option<&String>, Option<&String>) {
    match &config.local_detection {
        // KUBE: without ranges, ClusterCIDR is the same as no detection.
        LocalDetection::ClusterCidr | LocalDetection::None => ("ClusterCIDR", None, None),
        LocalDetection::NodeCidr => ("NodeCIDR", None, None),
        LocalDetection::Interface(PodInterfaces::Named(name)) => {
            ("BridgeInterface", Some(name), None)
        }
        LocalDetection::Interface(PodInterfaces::Prefix(prefix)) => {
            ("InterfaceNamePrefix", None, Some(prefix))
        }
    }
}

/// Writes `masqueradeAll` of the mode that is in force, and false for the other.
fn masquerade_all(config: &Config, is_in_force: bool) -> Option<Value> {
    Some(Value::Bool(is_in_force && config.masquerade_all))
}

fn masquerade_bit(config: &Config) -> Option<Value> {
    Some(Value::Number(
        config.marks.masquerade.trailing_zeros().into(),
    ))
}
