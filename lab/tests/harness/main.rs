// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the lab itself: its hosts reach each other, its probes distinguish right from wrong,
//! its checks can fail. Needs root and nft, but no agent.

mod cases;
mod expectations;
mod pinned;
mod probes;
mod reach;
