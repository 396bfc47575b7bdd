// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entries of the table of settings: the node, where the agent listens, and how it recognises pods.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};

use linux::interfaces::PodInterfaces;

use crate::{
    LocalDetection,
    setting::{Choice, Group, Kind, Read, Setting, Value},
    values,
};

fn path(path: &Path) -> Value {
    Value::Text(path.display().to_string())
}

pub(super) const NODE: Group = Group {
    title: "The node and the API server",
    about: "The agent needs to know its node and, unless it follows a folder of manifests, the API server.",
    settings: &[
        // This setting comes first, because the defaults of others depend on it.
        Setting::new(
            "mode",
            Kind::Special {
                values: "`iptables`, `ipvs` or `nftables`",
                placeholder: "MODE",
                read: Read::Text(|draft, mode| draft.set_mode(mode)),
                write: |config| Some(Value::Text(config.mode.word())),
            },
        )
        .flag("proxy-mode")
        .unset("not set, which is like `iptables`")
        .what("The kube-proxy mode whose behaviour the cluster expects. portolan always works with eBPF, but \
                `nftables` changes two defaults: `nodePortAddresses` is `primary`, and \
                `portolan.unallocatedClusterIPs` is `drop`. The mode also selects one of the two `masqueradeBit`s.")
        .when("Keep what kube-proxy's file says."),
        Setting::new(
            "clientConnection.kubeconfig",
            Kind::Special {
                values: "file",
                placeholder: "FILE",
                read: Read::Any(|draft, file| draft.config.kubeconfig = Some(file.into())),
                write: |config| config.kubeconfig.as_deref().map(path),
            },
        )
        .flag("kubeconfig")
        .unset("the pod's service account, with the address of `--master`")
        .what("A kubeconfig file with the API server's address and the credentials for it. The address must be the \
                server's own, not its service address, which leads nowhere until the agent has read the services.")
        .when("Set it if the agent does not run as a pod."),
        Setting::new(
            "hostnameOverride",
            Kind::Special {
                values: "node name",
                placeholder: "NODE",
                read: Read::Any(|draft, name| draft.config.hostname_override = Some(name.into())),
                write: |config| config.hostname_override.clone().map(Value::Text),
            },
        )
        .flag("hostname-override")
        .unset("the host name in lower case")
        .what("The name of this node's Node object. Topology, `Local` traffic policies and the node's addresses \
                depend on it.")
        .when("Set it if the Node object is not named like the host."),
        Setting::new(
            "portolan.pinDirectory",
            Kind::Special {
                values: "directory",
                placeholder: "DIR",
                read: Read::Any(|draft, directory| draft.config.pin_directory = directory.into()),
                write: |config| Some(path(&config.pin_directory)),
            },
        )
        .flag("pin-dir")
        .what("The directory on a BPF file system in which maps and programs are pinned, so that they outlive the \
                agent.")
        .when("Change it if the BPF file system is mounted elsewhere. Give the other commands the same directory \
                with `--pin-dir`."),
        Setting::new("portolan.interfaces", Kind::Patterns(|config| &mut config.interfaces))
            .unset("`[]`: uplinks, pods' interfaces, ports of bridges and tunnels are detected")
            .what("The names of the interfaces that get the packet programs, instead of the detected ones. A leading `!` excludes \
                names; if all patterns exclude, the detection decides about the others. The loopback interface always \
                gets the programs, a bridge itself never does: its ports get them. An interface of any other kind counts as an uplink if it has \
                an address that is not link-local, unless nobody can be behind it (dummy, vrf); IP over InfiniBand cannot be served, and a warning names it.")
            .when("Set it if the detection misses an interface that clients or pods are behind, or takes one too many."),
    ],
};

pub(super) const LISTENING: Group = Group {
    title: "Where it listens",
    about: "The agent's own HTTP servers. Load balancers and the kubelet ask `healthzBindAddress`, Prometheus asks \
        `metricsBindAddress`. While another process uses an address, a warning names it, and the agent tries again every \
        few seconds; services are served meanwhile.",
    settings: &[
        // This setting comes before the two whose defaults depend on it.
        Setting::new(
            "bindAddress",
            Kind::Special {
                values: "IP address",
                placeholder: "IP",
                read: Read::Text(|draft, text| values::bind_address(text, &mut draft.config)),
                write: |config| Some(Value::Text(config.bind_address.to_string())),
            },
        )
        .flag("bind-address")
        .what("The IP family of the two addresses below, if they are not set: with an IPv6 address they are \
                `[::]:10256` and `[::1]:10249`. Both `0.0.0.0` and `::` mean every address of both families, in all settings of \
                this section, and so do health check node ports. An address other than `0.0.0.0` and `::` is also the node's own: `primary` \
                of `nodePortAddresses` means it, and it is taken like `--node-ip` if the Node object has none.")
        .when("Use `::` if metrics are asked for at `::1`. Nodes without IPv4 do not need it."),
        Setting::new("bindAddressHardFail", Kind::Bool(|config| &mut config.bind_address_hard_fail))
            .flag("bind-address-hard-fail")
            .what("End the agent if another process uses one of the two addresses below when it starts.")
            .when("Switch it on if an agent without health checks or metrics is worse than none."),
        Setting::new("healthzBindAddress", Kind::Address(|config| &mut config.healthz_bind_address))
            .flag("healthz-bind-address")
            .unset("`0.0.0.0:10256`, with an IPv6 `bindAddress` `[::]:10256`; the port is 10256 unless it is given")
            .what("Where `/healthz` and `/livez` are served. Like kube-proxy's, `/healthz` is 503 until the Node object has been seen, \
                while it is being deleted, and while it has the autoscaler's taint.")
            .when("Change it if another program uses the port."),
        Setting::new(
            "portolan.probeBindAddress",
            Kind::Special {
                values: "IP address, with a port or without",
                placeholder: "ADDRESS",
                read: Read::Text(|draft, text| {
                    let mut address = SocketAddr::from((Ipv4Addr::LOCALHOST, 10247));
                    values::address(text, &mut address)?;
                    draft.config.probe_bind_address = Some(address);
                    Ok(())
                }),
                write: |config| {
                    let address = config.probe_bind_address?;
                    Some(Value::Text(address.to_string()))
                },
            },
        )
        .flag("probe-bind-address")
        .unset("nowhere. The manifests in `deploy/` set `127.0.0.1:10247`")
        .what("Where `/healthz` and `/livez` are served once more, for the kubelet's probes: no other proxy answers there. The port is \
                10247 unless it is given.")
        .when("Change it, in the pod's arguments and in its probes, if another program uses the port."),
        Setting::new("metricsBindAddress", Kind::Address(|config| &mut config.metrics_bind_address))
            .flag("metrics-bind-address")
            .unset("`127.0.0.1:10249`, with an IPv6 `bindAddress` `[::1]:10249`; the port is 10249 unless it is given")
            .what("Where `/metrics`, `/configz` (the settings in force, as JSON), `/warnings`, `/proxyMode` and a `/healthz` that only says `ok` are \
                served.")
            .when("Use `0.0.0.0:10249` if Prometheus asks from another host. All of it is readable by everybody who \
                reaches the port."),
    ],
};

pub(super) const PODS: Group = Group {
    title: "Pods",
    about: "Connections of pods are treated differently from those of other clients: clients outside are masqueraded \
        when they use a cluster IP, and pods are not bound to the `externalTrafficPolicy: Local` of a service.",
    settings: &[
        Setting::new(
            "clusterCIDR",
            Kind::Special {
                values: "address ranges separated by commas, at most four of each IP family",
                placeholder: "CIDRS",
                read: Read::Text(|draft, text| {
                    values::pod_ranges(text.split(',')).map(|all| draft.config.cluster_cidr = all)
                }),
                write: |config| {
                    let ranges = &config.cluster_cidr;
                    let texts: Vec<_> = ranges.iter().map(ToString::to_string).collect();
                    (!texts.is_empty()).then(|| Value::Text(texts.join(",")))
                },
            },
        )
        .flag("cluster-cidr")
        .unset("not set")
        .what("The address ranges of all pods of the cluster, like `10.244.0.0/16,fd00:10:244::/56`. In an IP family without a \
                range, pods are not recognised: nobody is masqueraded for not being a pod.")
        .when("Always set it, unless `detectLocalMode` has another way to recognise pods."),
        Setting::new(
            "detectLocal.clusterCIDRs",
            Kind::Special {
                values: "list of address ranges, at most four of each IP family",
                placeholder: "CIDRS",
                read: Read::List(|draft, texts| {
                    if !texts.is_empty() {
                        let texts = texts.iter().map(String::as_str);
                        draft.config.cluster_cidr = values::pod_ranges(texts)?;
                    }
                    Ok(())
                }),
                write: |_| None,
            },
        )
        .flag("cluster-cidr")
        .unset("`[]`: `clusterCIDR` holds")
        .what("The same as `clusterCIDR`, as a list. It replaces `clusterCIDR` unless it is empty.")
        .when("Keep what kube-proxy's file says."),
        Setting::new(
            "detectLocalMode",
            Kind::Special {
                values: "`ClusterCIDR`, `NodeCIDR`, `BridgeInterface` or `InterfaceNamePrefix`",
                placeholder: "MODE",
                read: Read::Any(|draft, mode| draft.detect_local_mode = mode.into()),
                write: |config| {
                    let mode = match &config.local_detection {
                        // KUBE: without ranges, ClusterCIDR is the same as no detection.
                        LocalDetection::ClusterCidr | LocalDetection::None => "ClusterCIDR",
                        LocalDetection::NodeCidr => "NodeCIDR",
                        LocalDetection::Interface(PodInterfaces::Named(_)) => "BridgeInterface",
                        LocalDetection::Interface(PodInterfaces::Prefix(_)) => {
                            "InterfaceNamePrefix"
                        }
                    };
                    Some(Value::Text(mode.to_owned()))
                },
            },
        )
        .flag("detect-local-mode")
        .unset("`ClusterCIDR`; if `clusterCIDR` is not set either, pods are not recognised")
        .what("How pods are recognised: by the ranges in `clusterCIDR`, by the ranges in this node's object \
                (`NodeCIDR`), or by the interface that their packets come from.")
        .when("Use `NodeCIDR` if other nodes' pods should be treated like other clients, and an interface if the \
                pods' addresses are not known."),
        Setting::new(
            "detectLocal.bridgeInterface",
            Kind::Special {
                values: "interface name",
                placeholder: "NAME",
                read: Read::Any(|draft, name| draft.bridge_interface = name.into()),
                write: |config| match &config.local_detection {
                    LocalDetection::Interface(PodInterfaces::Named(name)) => {
                        Some(Value::Text(name.clone()))
                    }
                    _ => None,
                },
            },
        )
        .flag("pod-bridge-interface")
        .unset("not set")
        .what("The bridge that the pods of this node are connected to, for `detectLocalMode: BridgeInterface`.")
        .when("Set it with that mode, to `cni0` for example."),
        Setting::new(
            "detectLocal.interfaceNamePrefix",
            Kind::Special {
                values: "beginning of interface names",
                placeholder: "PREFIX",
                read: Read::Any(|draft, prefix| draft.interface_name_prefix = prefix.into()),
                write: |config| match &config.local_detection {
                    LocalDetection::Interface(PodInterfaces::Prefix(prefix)) => {
                        Some(Value::Text(prefix.clone()))
                    }
                    _ => None,
                },
            },
        )
        .flag("pod-interface-name-prefix")
        .unset("not set")
        .what("How the names of the pods' interfaces on this node begin, for \
                `detectLocalMode: InterfaceNamePrefix`.")
        .when("Set it with that mode, to `cali` for example."),
    ],
};
