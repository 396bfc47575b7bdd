// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The faults of docs/why.md: each is set up, its client suffers, the page's command is run as it
//! stands there and prints what the page shows; then the page's remedy is used, and the client is
//! served.

mod faults;
mod page;
mod scene;

use page::Section;
use scene::Scene;

/// A fault, by the title of its section.
struct Fault {
    title: &'static str,
    /// Makes it, has it looked at, and uses the page's remedy.
    happen: fn(&Scene, &dyn Fn()),
    /// Whether the client is served as its user expects.
    is_well: fn(&Scene) -> bool,
}

#[test]
fn every_fault_of_the_page_is_found_by_its_command_and_gone_after_its_remedy() {
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

/// Whether the section's command prints its lines, in their order.
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
