// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The agent as an operator meets it: started, restarted, given bad input, on a node of network
//! namespaces with two pods. Needs root and KUBEBUILDER_ASSETS.

mod agent;
mod attachments;
mod bandwidth;
mod changes;
mod check;
mod churn;
mod clean;
mod cluster;
mod commands;
mod configured;
mod connection;
mod deploy;
mod devices;
mod dump;
mod explain;
mod external;
mod failover;
mod forward;
mod growth;
mod handover;
mod health;
mod in_place;
mod init;
mod maps_page;
mod next_layout;
mod objects;
mod observe;
mod own_addresses;
mod pages;
mod past_the_stack;
mod path_mtu;
#[path = "../fuzz/random.rs"]
mod random;
mod reasons;
mod refused;
mod repair;
mod restart;
mod scale;
mod server;
mod shadow;
mod start;
mod storm;
mod stream;
mod succession;
mod takeover;
mod terminal;
mod top;
mod trace;
mod tunnel;
mod why;
mod without_v4;
mod world;
mod xdp;
