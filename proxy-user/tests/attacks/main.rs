// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What clients still get while a node is attacked: the attacks of `lab::attacks`, shorter and with
//! smaller tables than `cargo xtask bench attacks`. One after the other, because each takes the
//! machine. Needs root.

mod measuring;
mod node;
mod survive;
