// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flags that say which packets and calls `trace` shows, and the kernel's filter for them.

use anyhow::{Result, bail};
use proxy_common::{
    Port,
    trace::{
        Filter,
        filter::{CLIENTS, SERVICES},
    },
};

use crate::{
    args::{SELECTION, ServiceArg},
    frame::BadInput,
    names::{EndArg, NameArgs},
    packets::{Verdict, name_cache::NameCache, widened},
};

/// Which packets and calls to show: those that meet all flags.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = SELECTION)]
pub struct FilterArgs {
    /// Only of this service, by the flow that a packet belongs to: NAME, NAMESPACE/NAME, or either
    /// with :PORT, which is a name or a number.
    #[arg(long, value_name = "SERVICE")]
    pub service: Option<ServiceArg>,
    /// Only from or to this address, before or after translation, or one of this pod:
    /// pod/NAMESPACE/NAME. The calls of its sockets have no source address.
    #[arg(long, value_name = "CLIENT")]
    pub client: Option<EndArg>,
    /// Only with this port at either end, before or after translation.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Only with one of these verdicts; several are separated by commas.
    #[arg(long, value_name = "VERDICT", value_enum, value_delimiter = ',')]
    pub verdict: Vec<Verdict>,
    /// Also show what concerns no service.
    #[arg(long, conflicts_with = "verdict")]
    pub all: bool,
}

impl FilterArgs {
    /// Looks up the names in the flags, and returns the filter. Without verdicts it wants only what
    /// concerns a service, unless `all` is given.
    pub(super) fn filter(&self, names: &NameArgs, known: &NameCache) -> Result<Filter> {
        let mut filter = Filter::all(self.outcomes());
        filter.port = self.port.map_or(Port::ANY, Port::from_host);
        if let Some(service) = &self.service {
            let ids = known.services(service)?;
            if ids.len() > SERVICES {
                bail!(BadInput(format!(
                    "--service {service} means {} ports, and at most {SERVICES} can be watched: name one by :PORT",
                    ids.len()
                )));
            }
            filter.services[..ids.len()].copy_from_slice(&ids);
        }
        if let Some(client) = &self.client {
            let mut client = client.clone();
            client.look_up(None, names)?;
            let addresses = client.addresses().iter().take(CLIENTS);
            for (place, address) in filter.clients.iter_mut().zip(addresses) {
                *place = widened(*address);
            }
        }
        Ok(filter)
    }

    fn outcomes(&self) -> u64 {
        let verdicts = self.verdict.iter().map(|verdict| verdict.outcomes());
        match verdicts.reduce(|all, one| all | one) {
            Some(outcomes) => outcomes,
            None if self.all => u64::MAX,
            None => !Verdict::Untouched.outcomes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proxy_common::{Counter, trace::Event};
    use rstest::rstest;

    use super::*;
    use crate::args::tests::parsed;

    #[rstest]
    #[case("", &[Counter::ForwardedNew, Counter::DroppedSource], &[Counter::Untouched])]
    #[case("--all", &[Counter::ForwardedNew, Counter::Untouched], &[])]
    #[case("--verdict drop,reject", &[Counter::DroppedSource, Counter::RejectedNoEndpoint], &[Counter::ForwardedNew])]
    #[case("--verdict untouched", &[Counter::Untouched], &[Counter::ForwardedNew])]
    fn untouched_packets_and_verdicts_are_shown_if_they_are_asked_for(
        #[case] flags: &str,
        #[case] wanted: &[Counter],
        #[case] others: &[Counter],
    ) {
        let filter = Filter::all(parsed::<FilterArgs>(flags).outcomes());
        let wants = |counter: &Counter| {
            filter.wants_outcome(&Event {
                outcome: *counter as u32,
                ..Event::EMPTY
            })
        };
        assert!(wanted.iter().all(wants), "{flags}");
        assert!(!others.iter().any(wants), "{flags}");
    }
}
