// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the agent and its commands as an operator uses them, on a node made of network
//! namespaces with two pods. Need root and KUBEBUILDER_ASSETS.

mod agent;
mod attachments;
mod bandwidth;
mod check;
mod clean;
mod cluster;
mod commands;
mod configured;
mod connection;
mod datagrams;
mod devices;
mod dump;
mod explain;
mod follow;
mod forward;
mod gateways;
mod gone_endpoints;
mod growth;
mod handover;
mod init;
mod many_interfaces;
mod masquerade;
mod objects;
mod observe;
mod own_addresses;
mod past_the_stack;
mod reads;
mod refused;
mod repair;
mod rights;
mod server;
mod servers;
mod takeover;
mod terminal;
mod trace;
mod without_v4;
mod world;
mod xdp;
