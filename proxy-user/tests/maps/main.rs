// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel side against the real kernel: what apply leaves in the maps, restarts, full maps, refusals,
//! attachments, sweeping, and readers while the agent writes. Needs root; fails without.

mod attach;
mod interfaces;
mod open;
mod publish;
mod readers;
mod support;
mod sweep;
