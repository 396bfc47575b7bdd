// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Damaged configuration files are read, or refused in one line, but never cause a panic.

use control::testing::damaged;
use proptest::prelude::*;

use super::whole;

const FILE: &str = "
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clusterCIDR: 10.40.0.0/16,fd00:40::/48
detectLocalMode: ClusterCIDR
detectLocal: {bridgeInterface: cni0, interfaceNamePrefix: veth}
healthzBindAddress: 0.0.0.0:10256
metricsBindAddress: 127.0.0.1:10249
nodePortAddresses: [192.168.0.0/16, primary]
iptables: {masqueradeBit: 14, masqueradeAll: true, minSyncPeriod: 1s, syncPeriod: 30s}
conntrack: {tcpEstablishedTimeout: 24h0m0s, tcpCloseWaitTimeout: 1h, udpTimeout: 30s, udpStreamTimeout: 2m}
portolan:
  socketBalancing: all
  forwarding: stack
  maps: {flows: 65536}
";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_damaged_file_is_read_or_refused(edits in prop::collection::vec(any::<(u16, u8, u8)>(), 1..6)) {
        if let Err(error) = whole(&damaged(FILE, &edits)) {
            let text = error.to_string();
            prop_assert!(!text.is_empty() && !text.contains('\n'), "{}", text);
        }
    }
}
