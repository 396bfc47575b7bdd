// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Label selectors. KUBE: `meta.v1.LabelSelector`, by which a listener chooses namespaces.

use std::{collections::BTreeMap, sync::Arc};

use serde::Deserialize;

/// The labels of an object.
pub type Labels = BTreeMap<Arc<str>, Arc<str>>;

/// A label selector; an empty one matches everything. One with a misspelled part cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Selector {
    match_labels: BTreeMap<String, String>,
    match_expressions: Vec<Expression>,
}

#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expression {
    key: String,
    operator: Operator,
    #[serde(default)]
    values: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl Selector {
    /// Whether the selector matches these labels.
    pub fn matches(&self, labels: &Labels) -> bool {
        let has = |key: &str, value: &str| labels.get(key).is_some_and(|label| **label == *value);
        let mut equal = self.match_labels.iter();
        let mut expressions = self.match_expressions.iter();
        equal.all(|(key, value)| has(key, value))
            && expressions.all(
                |Expression {
                     key,
                     operator,
                     values,
                 }| {
                    let any = values.iter().any(|value| has(key, value));
                    let known = labels.contains_key(&**key);
                    match operator {
                        Operator::In => any,
                        // KUBE: an object without the label matches; without values nothing does.
                        Operator::NotIn => !any && !values.is_empty(),
                        Operator::Exists => known,
                        Operator::DoesNotExist => !known,
                    }
                },
            )
    }
}
