// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entries of the table of settings: idle times, sizes of maps, logs and metrics.

use crate::{
    setting::{Group, Kind, Read, Setting, Value},
    values::{self, Seconds},
};

pub(super) const TIMES: Group = Group {
    title: "Idle times of connections",
    about: "How long a connection may be silent before portolan forgets it. These times hold for the flow table of the \
        packet path (`portolan flows`). kube-proxy's names are kept, and `0s` means the default. As kube-proxy sets them, they \
        are set of the node's nf_conntrack too, which still follows the node's other connections; there `0s` changes nothing. The \
        DaemonSet's init container does that (`portolan init`), so a change needs a new pod there. A parameter that the kernel has not, or \
        does not let it write, is named in the init container's log: `nf_conntrack_max` belongs to the whole machine, not to a network namespace.",
    settings: &[
        Setting::new(
            "conntrack.tcpEstablishedTimeout",
            Kind::Seconds(|config| Seconds {
                idle: &mut config.idle_times.tcp_established,
                conntrack: &mut config.conntrack.tcp_established,
            }),
        )
        .flag("conntrack-tcp-timeout-established")
        .what("How long an established TCP connection may be idle (300 seconds at most, if the client has not \
                answered the endpoint's last data).")
        .when("Lower it if many clients vanish without closing their connections and the flow table fills up. \
                Keep it above the TCP keepalive time of the clients."),
        Setting::new(
            "conntrack.tcpCloseWaitTimeout",
            Kind::Seconds(|config| Seconds {
                idle: &mut config.idle_times.tcp_close_wait,
                conntrack: &mut config.conntrack.tcp_close_wait,
            }),
        )
        .flag("conntrack-tcp-timeout-close-wait")
        .what("How long a TCP connection may be idle that one side has closed while the other side \
                goes on (else 120 seconds at most).")
        .when("Lower it if `portolan flows` shows many half-closed connections."),
        Setting::new(
            "conntrack.udpTimeout",
            Kind::Seconds(|config| Seconds {
                idle: &mut config.idle_times.udp,
                conntrack: &mut config.conntrack.udp,
            }),
        )
        .flag("conntrack-udp-timeout")
        .unset("`0s`: 30 s in the flow table")
        .what("How long a UDP flow may be idle that has had no answer.")
        .when("Raise it for servers that take longer to answer."),
        Setting::new(
            "conntrack.udpStreamTimeout",
            Kind::Seconds(|config| Seconds {
                idle: &mut config.idle_times.udp_stream,
                conntrack: &mut config.conntrack.udp_stream,
            }),
        )
        .flag("conntrack-udp-timeout-stream")
        .unset("`0s`: 120 s in the flow table")
        .what("How long a UDP flow may be idle that has had an answer. After that, the client's next datagram may \
                go to another endpoint.")
        .when("Raise it for UDP protocols with longer pauses, for example VPNs. Lower it if short queries fill \
                the flow table."),
        Setting::new(
            "conntrack.maxPerCore",
            Kind::Connections(
                |config| &mut config.conntrack.max_per_core,
                "; `0` leaves nf_conntrack as it is",
            ),
        )
        .flag("conntrack-max-per-core")
        .what("How many connections the node's nf_conntrack may hold for each processor, 1048576 in all at most. Its hash table \
                becomes a quarter of that if it is smaller.")
        .when("Keep what kube-proxy's file says. portolan's own flow table is `portolan.maps.flows`."),
        Setting::new(
            "conntrack.min",
            Kind::Connections(|config| &mut config.conntrack.min, ""),
        )
        .flag("conntrack-min")
        .what("How many connections nf_conntrack may hold at least, unless `conntrack.maxPerCore` is 0.")
        .when("Keep what kube-proxy's file says."),
        Setting::new(
            "conntrack.tcpBeLiberal",
            Kind::Bool(|config| &mut config.conntrack.tcp_be_liberal),
        )
        .flag("conntrack-tcp-be-liberal")
        .what("Have nf_conntrack accept TCP segments outside of the window. portolan's flow table never refuses a segment for its \
                sequence number. With `portolan.forwarding: auto`, `portolan init` does it in any case.")
        .when("Keep what kube-proxy's file says."),
    ],
};

const BY_MACHINE: &str = "by the machine";

pub(super) const MAPS: Group = Group {
    title: "Sizes of the maps",
    about: "How many entries each BPF map can hold. Most of the memory is reserved when the agent starts; it is kernel \
        memory, charged to the agent's cgroup. These are the sizes at the start. Where none is set, the machine decides: \
        flows are 65536 for each processor, 524288 at least and 4194304 at most, sockets a quarter of that, affinity an \
        eighth; 131072 frontends and records, 1048576 slots, 262144 backends and 16384 source ranges; all of them \
        halved until the maps take a sixteenth of the machine's memory at most. A map that is three quarters full, or would be \
        if it had room for every service, is succeeded by a larger one, which the next agent keeps. After a change the next agent takes over to maps of the new sizes, and no connection breaks; \
        for that moment there are both. The metrics `portolan_map_entries` and \
        `portolan_map_capacity` show how full the maps are, and the log names a map that is full.",
    settings: &[
        Setting::new(
            "portolan.maps.memory",
            Kind::Special {
                values: "a number of MiB; 0 for a quarter of the machine's memory",
                placeholder: "MIB",
                read: Read::Number(|draft, mib| {
                    draft.config.map_memory = u32::try_from(mib.max(0)).unwrap_or(u32::MAX);
                }),
                write: |config| {
                    (config.map_memory != 0).then(|| Value::Number(config.map_memory.into()))
                },
            },
        )
        .unset("a quarter of the machine's memory")
        .what("How much kernel memory all maps together may take when some of them grow. While larger maps take over there are \
                both, and both count.")
        .when("Lower it, or give the DaemonSet a memory limit above it, where memory is short."),
        Setting::new(
            "portolan.maps.frontends",
            Kind::Entries(|config| &mut config.capacities.frontends),
        )
        .unset(BY_MACHINE)
        .what("Addresses and ports that clients can reach, of each IP family: one for every port of every cluster \
                IP, external IP and load balancer address, one for every node port, and one for every cluster IP.")
        .when("Raise it, and `records` with it, to begin with room for more than about 49 000 services with one port each."),
        Setting::new(
            "portolan.maps.records",
            Kind::Entries(|config| &mut config.capacities.records),
        )
        .unset(BY_MACHINE)
        .what("What a frontend leads to, of each IP family: policy and endpoints. Every frontend needs a record, \
                and a changed one needs a second for a moment.")
        .when("Keep it as large as `frontends`."),
        Setting::new("portolan.maps.slots", Kind::Entries(|config| &mut config.capacities.slots))
            .unset(BY_MACHINE)
            .what("Places in the lists of endpoints. A service port needs one place for each of its endpoints, up to \
                twice if policies or topology make a second list, and a new list while one is replaced.")
            .when("Raise it to begin with room for more than about 400 000 endpoints of all service ports together."),
        Setting::new(
            "portolan.maps.backends",
            Kind::Entries(|config| &mut config.capacities.backends),
        )
        .unset(BY_MACHINE)
        .what("Endpoints, of each IP family, counted once for each service port.")
        .when("Raise it to begin with room for more endpoints."),
        Setting::new("portolan.maps.flows", Kind::Entries(|config| &mut config.capacities.flows))
            .unset(BY_MACHINE)
            .what("Connections on the packet path, of each IP family. A connection takes two entries, three if it is \
                masqueraded. In a full table new connections replace those that are over or that no client has \
                acknowledged yet. Established ones are never removed for others: a table full of them refuses new ones.")
            .when("Raise it on nodes that forward many connections of clients outside the cluster. Lower it to save \
                memory on small nodes: it is the largest part."),
        Setting::new(
            "portolan.maps.affinity",
            Kind::Entries(|config| &mut config.capacities.affinity),
        )
        .unset(BY_MACHINE)
        .what("Clients of services with `sessionAffinity: ClientIP`, of each IP family, and pods at the socket \
                hooks. When it is full, the client that has been silent longest is forgotten.")
        .when("Raise it for more clients with affinity at the same time."),
        Setting::new(
            "portolan.maps.sockets",
            Kind::Entries(|config| &mut config.capacities.sockets),
        )
        .unset(BY_MACHINE)
        .what("Overflow entries of translated sockets on this node, of each IP family. The first entry of a socket has a place \
                in another map, of fixed size; a UDP socket that is not connected needs two overflow entries for \
                each service that it talks to.")
        .when("Raise it if many UDP sockets on one node talk to many services."),
        Setting::new(
            "portolan.maps.sourceRanges",
            Kind::Entries(|config| &mut config.capacities.source_ranges),
        )
        .unset(BY_MACHINE)
        .what("Ranges in the field `loadBalancerSourceRanges` of services, of each IP family, counted once for \
                each service port.")
        .when("Raise it if services have long lists of source ranges."),
    ],
};

/// The key of the setting that the flag `-v` sets.
pub(crate) const LOG_LEVEL: &str = "portolan.logLevel";

pub(super) const LOGS: Group = Group {
    title: "Logs and metrics",
    about: "The log goes to standard error. Metrics are served at `metricsBindAddress`.",
    settings: &[
        // This setting comes before the level, which overrides it.
        Setting::new(
            "logging.verbosity",
            Kind::Special {
                values: "a number",
                placeholder: "LEVEL",
                read: Read::Number(|draft, verbosity| {
                    if verbosity > 0 {
                        values::level_of_verbosity(verbosity)
                            .clone_into(&mut draft.config.log_level);
                    }
                }),
                // The log level is written instead.
                write: |_| None,
            },
        )
        .unset("`0`")
        .what("kube-proxy's log level, if `portolan.logLevel` is not set: up to 3 is `info`, 4 and 5 `debug`, 6 and more \
                `trace`. The flag `-v` sets it as well.")
        .when("Keep what kube-proxy's file says."),
        Setting::new("logging.format", Kind::Choice(|config| &mut config.log_format))
            .flag("logging-format")
            .what("The form of the log's lines: text for people, or with `json` one JSON object a line, with `timestamp`, \
                `level`, `target` and `fields`, of which `message` is one.")
            .when("Use `json` if a program collects the log."),
        Setting::new(
            LOG_LEVEL,
            Kind::Special {
                values: "`error`, `warn`, `info`, `debug` or `trace`, or a filter like `warn,portolan_source=debug`",
                placeholder: "LEVEL",
                read: Read::Text(|draft, level| {
                    values::log_level(level).map(|level| draft.config.log_level = level)
                }),
                write: |config| Some(Value::Text(config.log_level.clone())),
            },
        )
        .flag("log-level")
        .what("The least severe messages of the agent that are logged.")
        .when("Use `debug` to see what the agent does with each change."),
        Setting::new("portolan.logPackets", Kind::Bool(|config| &mut config.log_packets))
            .flag("log-packets")
            .what("Log one line for every packet of a service, with what became of it.")
            .when("Switch it on to look into a fault, and off again: it costs every packet time."),
        Setting::new(
            "portolan.perServiceMetrics",
            Kind::Bool(|config| &mut config.per_service_metrics),
        )
        .what("Add the metric `portolan_service_flows`: the flows on the packet path, one line for each service.")
        .when("Switch it on if you need it and have few services: every scrape walks the whole flow table."),
        Setting::new("portolan.objectEvents", Kind::Bool(|config| &mut config.object_events))
            .what("Write warnings about Services and EndpointSlices as events of these objects, so that `kubectl describe` shows them. \
                One node writes each event. Every other node asks for it by name once, after up to half a minute, and for no more than \
                one in 15 s: 5000 nodes ask 170 times a second on average while there are new warnings, after a restart as well. \
                Events about the node itself are always written.")
            .when("Switch it off if that is too much for the API server. The warnings are in the log, in `portolan warnings` and in \
                `portolan_warnings` in any case."),
    ],
};
