// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests what clients still get while a node is attacked: the attacks of `lab::attacks`, for
//! seconds and on small tables. The tests run one after the other, because each attack uses the
//! whole machine. Needs root.

mod measuring;
mod node;
mod survive;
