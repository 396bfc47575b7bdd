// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts lists, watches and refusals in an audit log of kube-apiserver. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How often agents have asked for the objects of each kind.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Requests {
    /// Every list, also those that are streamed by a watch. Key: the resource, such as `services`.
    pub lists: BTreeMap<String, u64>,
    /// Watches that continue from a version.
    pub watches: BTreeMap<String, u64>,
    /// Answers that are no success. Key: the HTTP status.
    pub refused: BTreeMap<u16, u64>,
}

/// The fields of an event in the log that count.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    stage: String,
    verb: String,
    #[serde(rename = "requestURI")]
    uri: String,
    object_ref: Option<Reference>,
    response_status: Option<Status>,
}

#[derive(Deserialize)]
struct Reference {
    resource: String,
}

#[derive(Deserialize)]
struct Status {
    code: Option<u16>,
}

/// Counts the requests in the log's lines. A line that is cut off is ignored.
pub(super) fn count(log: &str) -> Requests {
    let mut requests = Requests::default();
    for line in log.lines() {
        if let Ok(event) = serde_json::from_str(line) {
            requests.add(event);
        }
    }
    requests
}

impl Requests {
    fn add(&mut self, event: Event) {
        // A watch has an event when it is answered and one when it ends, hours later perhaps.
        let counted = match event.verb.as_str() {
            "list" => "ResponseComplete",
            "watch" => "ResponseStarted",
            _ => return,
        };
        if event.stage != counted {
            return;
        }
        let status = event.response_status.and_then(|status| status.code);
        let status = status.unwrap_or_default();
        if status != 200 {
            return *self.refused.entry(status).or_default() += 1;
        }
        let Some(reference) = event.object_ref else {
            return;
        };
        let is_list = event.verb == "list" || has(&event.uri, "sendInitialEvents=true");
        // The further pages of a list are no lists.
        if has(&event.uri, "continue=") {
            return;
        }
        let counts = if is_list {
            &mut self.lists
        } else {
            &mut self.watches
        };
        *counts.entry(reference.resource).or_default() += 1;
    }
}

/// Returns true if a parameter of the URI begins with `wanted`.
fn has(uri: &str, wanted: &str) -> bool {
    let (_, query) = uri.split_once('?').unwrap_or_default();
    query.split('&').any(|part| part.starts_with(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(stage: &str, verb: &str, query: &str, code: u16) -> String {
        format!(
            r#"{{"kind":"Event","level":"Metadata","stage":"{stage}","requestURI":"/api/v1/services?{query}","verb":"{verb}","objectRef":{{"resource":"services","apiVersion":"v1"}},"responseStatus":{{"metadata":{{}},"code":{code}}}}}"#
        )
    }

    #[test]
    fn lists_of_both_forms_are_counted_once() {
        let log = [
            line(
                "ResponseStarted",
                "watch",
                "sendInitialEvents=true&watch=1",
                200,
            ),
            line(
                "ResponseComplete",
                "watch",
                "sendInitialEvents=true&watch=1",
                200,
            ),
            line("ResponseComplete", "list", "limit=500", 200),
            line("ResponseComplete", "list", "limit=500&continue=abc", 200),
            line("ResponseStarted", "watch", "resourceVersion=7&watch=1", 200),
            "{\"stage\":\"Respo".to_owned(),
        ];
        let requests = count(&log.join("\n"));
        assert_eq!(requests.lists["services"], 2);
        assert_eq!(requests.watches["services"], 1);
        assert!(requests.refused.is_empty(), "{requests:?}");
    }

    #[test]
    fn refusals_are_counted_by_their_code_and_are_no_lists() {
        let log = [
            line("ResponseStarted", "watch", "sendInitialEvents=true", 429),
            line("ResponseComplete", "watch", "sendInitialEvents=true", 429),
            line("ResponseComplete", "list", "limit=500", 429),
            line("ResponseStarted", "watch", "resourceVersion=7", 410),
            line("ResponseStarted", "watch", "resourceVersion=7", 500),
        ];
        let requests = count(&log.join("\n"));
        assert_eq!(requests.refused, [(410, 1), (429, 2), (500, 1)].into());
        assert!(requests.lists.is_empty() && requests.watches.is_empty());
    }
}
