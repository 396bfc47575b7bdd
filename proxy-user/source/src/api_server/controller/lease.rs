// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lease by which one process of the cluster is elected. KUBE: `coordination.k8s.io/v1.Lease`
//! as client-go's leader election uses it: others' clocks are not believed, so a lease has run out
//! when it has not changed for its duration, as seen from here.

use std::{mem, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::report;

/// The name of the lease.
const NAME: &str = "portolan-controller";
/// How long the lease holds after it was renewed.
const LASTS: Duration = Duration::from_secs(15);
/// How often the holder renews it, and others look at it.
const RENEW: Duration = Duration::from_secs(5);
/// After this long without a renewal the holder writes no more: before others may take the lease.
const SAFE: Duration = Duration::from_secs(10);
/// The pause after a request that failed.
const RETRY: Duration = Duration::from_secs(2);

const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;

/// The version of another holder's lease, and since when it has been that.
type Seen = (Option<String>, Instant);

/// The lease, and whether this process holds it.
pub(in crate::api_server) struct Election {
    leases: Api<Lease>,
    own: String,
    seen: Option<Seen>,
    /// When the request of the last renewal began; None if the lease is not held.
    renewed: Option<Instant>,
    /// Whether the last request failed.
    is_failing: bool,
}

impl Election {
    pub(in crate::api_server) fn new(client: &Client, namespace: &str, own: &str) -> Self {
        Self {
            leases: Api::namespaced(client.clone(), namespace),
            own: own.to_owned(),
            seen: None,
            renewed: None,
            is_failing: false,
        }
    }

    /// Waits until this process holds the lease.
    pub(in crate::api_server) async fn win(&mut self) {
        while let Some(pause) = self.attempt().await {
            sleep(pause.min(RENEW)).await;
        }
    }

    /// Renews the lease; ends when it is lost, or could not be renewed for too long.
    pub(in crate::api_server) async fn keep(&mut self) {
        while let Some(renewed) = self.renewed {
            let renewing = async {
                sleep_until(renewed + RENEW).await;
                while let Some(pause) = self.attempt().await
                    && self.renewed.is_some()
                {
                    sleep(pause).await;
                }
            };
            if timeout_at(renewed + SAFE, renewing).await.is_err() {
                self.renewed = None;
            }
        }
    }

    /// Takes or renews the lease. Returns None if this process holds it, else when to ask again.
    async fn attempt(&mut self) -> Option<Duration> {
        // A request that hangs must not keep this process from a lease that has run out.
        let held = timeout(SAFE, self.hold()).await;
        let held = held.unwrap_or_else(|late| Err(kube::Error::Service(late.into())));
        let was_failing = mem::replace(&mut self.is_failing, held.is_err());
        held.unwrap_or_else(|error| {
            report("hold the lease of the controllers", &error, !was_failing);
            Some(RETRY)
        })
    }

    async fn hold(&mut self) -> kube::Result<Option<Duration>> {
        let begun = Instant::now();
        let held = match self.leases.get(NAME).await {
            Err(kube::Error::Api(status)) if status.code == NOT_FOUND => {
                let lease = lease(None, &self.own);
                self.leases.create(&PostParams::default(), &lease).await
            }
            Err(error) => Err(error),
            Ok(current) => {
                if let Some(time) = left(&current, &self.own, &mut self.seen, begun) {
                    self.renewed = None;
                    return Ok(Some(time));
                }
                let (lease, how) = (lease(Some(&current), &self.own), PostParams::default());
                self.leases.replace(NAME, &how, &lease).await
            }
        };
        match held {
            Ok(_) => {
                self.renewed = Some(begun);
                Ok(None)
            }
            // Another process was faster.
            Err(kube::Error::Api(status)) if status.code == CONFLICT => {
                self.renewed = None;
                Ok(Some(RENEW))
            }
            Err(error) => Err(error),
        }
    }

    /// Gives the lease up, so that another process need not wait until it has run out.
    pub(in crate::api_server) async fn release(&mut self) {
        if self.renewed.take().is_none() {
            return;
        }
        if let Ok(mut current) = self.leases.get(NAME).await
            && let Some(spec) = &mut current.spec
            && spec.holder_identity.as_deref() == Some(&self.own)
        {
            spec.holder_identity = Some(String::new());
            // If it fails, the lease runs out.
            let how = PostParams::default();
            _ = self.leases.replace(NAME, &how, &current).await;
        }
    }
}

/// Returns after which time another process' lease has run out; None if it may be taken. Notes what
/// is seen of it.
fn left(current: &Lease, own: &str, seen: &mut Option<Seen>, now: Instant) -> Option<Duration> {
    let empty = LeaseSpec::default();
    let spec = current.spec.as_ref().unwrap_or(&empty);
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    if holder.is_empty() || holder == own {
        *seen = None;
        return None;
    }
    let version = current.metadata.resource_version.clone();
    let known = seen.take().filter(|(known, _)| *known == version);
    let since = known.map_or(now, |(_, since)| since);
    *seen = Some((version, since));
    let seconds = spec.lease_duration_seconds.unwrap_or_default();
    let lasts = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    let left = lasts.checked_sub(now.duration_since(since))?;
    (!left.is_zero()).then_some(left)
}

/// Returns the lease as its holder writes it.
fn lease(current: Option<&Lease>, own: &str) -> Lease {
    let now = MicroTime(Timestamp::now());
    let mut lease = current.cloned().unwrap_or_default();
    lease.metadata.name = Some(NAME.to_owned());
    let before = lease.spec.unwrap_or_default();
    let stays = before.holder_identity.as_deref() == Some(own);
    let changes = before.lease_transitions.unwrap_or_default();
    lease.spec = Some(LeaseSpec {
        holder_identity: Some(own.to_owned()),
        lease_duration_seconds: i32::try_from(LASTS.as_secs()).ok(),
        acquire_time: before.acquire_time.filter(|_| stays).or(Some(now.clone())),
        renew_time: Some(now),
        lease_transitions: Some(changes.saturating_add(i32::from(!stays))),
        ..LeaseSpec::default()
    });
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_keeps_its_time_and_a_new_one_counts_as_a_change() {
        let first = lease(None, "a");
        let again = lease(Some(&first), "a").spec.expect("a spec");
        let spec = first.spec.clone().expect("a spec");
        assert_eq!(again.acquire_time, spec.acquire_time);
        assert_eq!(again.lease_transitions, spec.lease_transitions);
        let other = lease(Some(&first), "b").spec.expect("a spec");
        assert_eq!(other.holder_identity.as_deref(), Some("b"));
        assert_eq!(other.lease_transitions, Some(2));
    }
}
