// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Converts the configuration's section `conntrack` to kernel parameters, as kube-proxy sets them
//! for the node's nf_conntrack. A pure computation, used by `cli::init`.

/// KUBE: the upper limit of `maxPerCore` multiplied by the number of processors.
const MOST: u64 = 1_048_576;

/// The settings of the section `conntrack` that are about the node's nf_conntrack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conntrack {
    /// Connections in nf_conntrack's table per processor; 0 leaves the size of the table unchanged.
    pub max_per_core: u32,
    pub min: u32,
    pub tcp_be_liberal: bool,
    /// Timeout in seconds; None leaves it unchanged. This also applies to the timeouts below.
    pub tcp_established: Option<u32>,
    pub tcp_close_wait: Option<u32>,
    /// How long a connection is kept while no acknowledgement of its data is seen. kube-proxy has
    /// no such setting; only for `forwarding: auto`: see [`linux::UNACKNOWLEDGED`].
    pub tcp_unacknowledged: Option<u32>,
    pub udp: Option<u32>,
    pub udp_stream: Option<u32>,
}

impl Default for Conntrack {
    fn default() -> Self {
        Self {
            max_per_core: 32_768,
            min: 131_072,
            tcp_be_liberal: false,
            tcp_established: Some(24 * 3600),
            tcp_close_wait: Some(3600),
            tcp_unacknowledged: None,
            udp: None,
            udp_stream: None,
        }
    }
}

impl Conntrack {
    /// Returns the maximum number of connections in nf_conntrack's table; None leaves it unchanged.
    ///
    /// KUBE: `getConntrackMax` of Kubernetes 1.36.
    pub fn max(&self, processors: u32) -> Option<u32> {
        if self.max_per_core == 0 {
            return None;
        }
        let scaled = u64::from(self.max_per_core) * u64::from(processors);
        let wanted = if scaled > MOST {
            MOST
        } else {
            scaled.max(self.min.into())
        };
        u32::try_from(wanted).ok().filter(|max| *max > 0)
    }

    /// Returns names below `/proc/sys/net/netfilter` and the values to write, in kube-proxy's
    /// order. Parameters to leave unchanged are left out.
    pub fn parameters(&self, processors: u32) -> Vec<(&'static str, u32)> {
        let all = [
            ("nf_conntrack_max", self.max(processors)),
            ("nf_conntrack_tcp_timeout_established", self.tcp_established),
            ("nf_conntrack_tcp_timeout_close_wait", self.tcp_close_wait),
            (
                "nf_conntrack_tcp_be_liberal",
                self.tcp_be_liberal.then_some(1),
            ),
            (
                "nf_conntrack_tcp_timeout_unacknowledged",
                self.tcp_unacknowledged,
            ),
            // The sequence number of a reset may be far from the last one that conntrack has seen.
            (
                "nf_conntrack_tcp_ignore_invalid_rst",
                self.tcp_unacknowledged.map(|_| 1),
            ),
            ("nf_conntrack_udp_timeout", self.udp),
            ("nf_conntrack_udp_timeout_stream", self.udp_stream),
        ];
        let given = all.into_iter();
        given
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::RawConfig;

    const TIMES: [(&str, u32); 2] = [
        ("nf_conntrack_tcp_timeout_established", 86_400),
        ("nf_conntrack_tcp_timeout_close_wait", 3600),
    ];

    #[rstest]
    #[case::the_least("", 1, &[("nf_conntrack_max", 131_072), TIMES[0], TIMES[1]])]
    #[case::by_processors("", 8, &[("nf_conntrack_max", 262_144), TIMES[0], TIMES[1]])]
    #[case::the_most("", 64, &[("nf_conntrack_max", 1_048_576), TIMES[0], TIMES[1]])]
    #[case::a_least_above_the_most("min: 2000000", 1, &[("nf_conntrack_max", 2_000_000), TIMES[0], TIMES[1]])]
    #[case::the_most_before_the_least("min: 2000000", 64, &[("nf_conntrack_max", 1_048_576), TIMES[0], TIMES[1]])]
    #[case::left_as_it_is("maxPerCore: 0, min: 7", 64, &TIMES)]
    #[case::nothing(
        "maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s, udpTimeout: 0s",
        4,
        &[]
    )]
    #[case::everything(
        "maxPerCore: 100, min: 50, tcpBeLiberal: true, tcpEstablishedTimeout: 1h, tcpCloseWaitTimeout: 90s, udpTimeout: 40s, udpStreamTimeout: 3m20s",
        2,
        &[
            ("nf_conntrack_max", 200),
            ("nf_conntrack_tcp_timeout_established", 3600),
            ("nf_conntrack_tcp_timeout_close_wait", 90),
            ("nf_conntrack_tcp_be_liberal", 1),
            ("nf_conntrack_udp_timeout", 40),
            ("nf_conntrack_udp_timeout_stream", 200),
        ]
    )]
    fn conntrack_parameters_are_set_as_by_kube_proxy(
        #[case] section: &str,
        #[case] processors: u32,
        #[case] expected: &[(&str, u32)],
    ) {
        let text = format!("conntrack: {{{section}}}\n");
        let config = RawConfig::parse_part("f", &text).and_then(RawConfig::check);
        let parameters = config.expect("valid").conntrack.parameters(processors);
        assert_eq!(parameters, expected);
    }
}
