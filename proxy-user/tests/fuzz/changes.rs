// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Generates random changes of services and node settings in a sequence.

use crate::{cluster, generate::Generator, operations::Operation, services::NodeSettings};

impl Generator {
    pub(crate) fn change_service(&mut self) {
        let index = self.random.below(self.services.len() as u64) as usize;
        let name = self.services[index].name.clone();
        if self.random.one_in(5) {
            self.operations.push(Operation::Remove(name));
            return;
        }
        let changed = cluster::changed(&self.services[index], &mut self.random);
        self.services[index] = changed.clone();
        self.operations.push(Operation::Apply(changed));
    }
    pub(crate) fn change_settings(&mut self) {
        let random = &mut self.random;
        let settings = NodeSettings {
            masquerade_all: random.one_in(4),
            detects_pods: !random.one_in(5),
            by_interface: random.one_in(4),
            mark_only: random.one_in(12),
            resets: !random.one_in(5),
            answer_ping: random.one_in(2),
            allocated: random.one_in(4),
            ports: random.pick(&[(1024, 29_999), (5000, 5003), (5000, 5007), (1024, 1100)]),
        };
        let settings = NodeSettings {
            by_interface: settings.by_interface && settings.detects_pods,
            ..settings
        };
        self.operations.push(Operation::Settings(settings));
    }
}
