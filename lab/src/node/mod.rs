// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A simulated node: network namespaces and a cgroup, the agent on it, and other programs there.

pub mod agent;
pub mod api_server;
pub mod bpffs;
pub mod cgroup;
pub mod etcd;
pub mod foreign;
pub mod http;
pub mod kube_proxy;
pub mod kubeconfig;
pub mod layout;
pub mod netns;
pub mod offload;
pub mod options;
pub mod pod;
pub mod process;
pub mod rights;
pub mod settings;
pub mod topology;
