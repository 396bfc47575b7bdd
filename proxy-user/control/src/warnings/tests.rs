// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the set of warnings, and of what is reported about objects.

use super::*;

fn warning(reason: &str) -> Warning {
    Warning {
        object: "Service shop/cart".into(),
        reason: reason.into(),
    }
}

#[test]
fn a_topics_new_warnings_replace_its_old_ones_and_no_others() {
    let warnings = Warnings::default();
    warnings.replace(Topic::Apply, vec![warning("a"), warning("b")]);
    warnings.replace(Topic::Node, vec![warning("c")]);
    warnings.replace(Topic::Apply, vec![warning("b")]);
    assert_eq!(warnings.all(), [warning("b"), warning("c")]);
    warnings.replace(Topic::Apply, Vec::new());
    assert_eq!(warnings.all(), [warning("c")]);
}

/// Keeps the reports that were not withdrawn.
impl Reporter for Mutex<Vec<Report>> {
    fn report(&self, report: Report) {
        self.lock().expect("the lock").push(report);
    }
    fn withdraw(&self, object: &ObjectKey, reason: &str) {
        let mut reports = self.lock().expect("the lock");
        reports.retain(|report| (&report.object, &*report.reason) != (object, reason));
    }
}

fn reported() -> (Warnings, Arc<Mutex<Vec<Report>>>) {
    let reports = Arc::<Mutex<Vec<Report>>>::default();
    let reporter: Arc<dyn Reporter> = Arc::clone(&reports) as _;
    (Warnings::reported_to(reporter), reports)
}

#[test]
fn foreign_programs_before_ours_are_reported_on_the_node_object() {
    let (warnings, reports) = reported();
    let topic = Topic::ForeignPrograms("node-a".into());
    warnings.replace(topic, vec![warning("a program")]);
    let reports = reports.lock().expect("the lock");
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].object.to_string(), "Node node-a");
}

#[test]
fn a_new_warning_about_a_service_is_reported_once_and_withdrawn_when_it_ends() {
    let (warnings, reports) = reported();
    warnings.replace(Topic::Apply, vec![warning("of the node")]);
    for reasons in [&["a", "b"][..], &["a", "b"], &["b"]] {
        let cart = Topic::Plan(ObjectName::new("shop", "cart"));
        warnings.replace(cart, reasons.iter().map(|reason| warning(reason)).collect());
    }
    let reports = reports.lock().expect("the lock");
    assert_eq!((reports.len(), &*reports[0].reason), (1, "b"));
    assert_eq!(reports[0].object.to_string(), "Service shop/cart");
}

#[test]
fn an_object_made_anew_is_reported_again() {
    let (warnings, reports) = reported();
    for uid_hash in [1, 1, 2] {
        let cart = Topic::Plan(ObjectName::new("shop", "cart"));
        warnings.replace_of(cart, uid_hash, vec![warning("conflict")]);
    }
    let reports = reports.lock().expect("the lock");
    assert_eq!(reports.len(), 1, "the first is withdrawn");
    assert_eq!(reports[0].uid_hash, 2);
}
