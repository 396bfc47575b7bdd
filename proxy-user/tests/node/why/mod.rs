// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The faults of docs/why.md. For each: the test sets it up and its client suffers; the page's
//! command, as written there, prints what the page shows; the page's remedy makes the client served
//! again.

mod faults;
mod page;
mod scene;

use page::Section;
use scene::Scene;

/// A fault, with the title of its section.
struct Fault {
    title: &'static str,
    /// Makes the fault, calls the function that checks it, and applies the page's remedy.
    happen: fn(&Scene, &dyn Fn()),
    /// Whether the client is served as its user expects.
    is_well: fn(&Scene) -> bool,
}

#[test]
fn commands_and_remedies_in_why_md_work_for_every_fault() {
    let scene = Scene::build();
    let sections = page::sections();
    let titles: Vec<_> = sections.iter().map(|section| section.title).collect();
    let faults: Vec<_> = faults::ALL.iter().map(|fault| fault.title).collect();
    assert_eq!(titles, faults, "each with its section, in the same order");
    assert!(faults.len() >= 10, "{faults:?}");
    for (fault, section) in faults::ALL.iter().zip(&sections) {
        println!("{}", fault.title);
        (fault.happen)(&scene, &|| {
            assert!(!(fault.is_well)(&scene), "{}", fault.title);
            shows(&scene, section);
        });
        assert!((fault.is_well)(&scene), "with the remedy: {}", fault.title);
    }
}

/// Checks that the section's command prints the section's lines in their order.
fn shows(scene: &Scene, section: &Section) {
    let printed = scene.run(&section.command);
    let mut lines = printed.lines();
    for wanted in &section.output {
        assert!(
            lines.any(|line| page::is_shown_as(line, wanted)),
            "{}: {wanted}\n\n{printed}",
            section.title
        );
    }
    assert!(!section.output.is_empty(), "{}: {printed}", section.title);
}
