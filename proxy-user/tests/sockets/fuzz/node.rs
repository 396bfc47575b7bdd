// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The node on which sequences run: a `World`, whose thread is in the socket hooks' cgroup.

use std::{fs, path::Path};

use datapath::maps::{
    FlowTable,
    family::Family,
    pins::{layout_dir, map_path},
    tables::Table,
};
use lab::node::settings::SocketBalancing;
use linux::{Plain, get_pinned};
use nix::unistd::gettid;
use proxy_common::{SocketBucket, SocketEntry, SocketKey, V4, V6, maps};

use crate::world::{World, until};

/// The node with its pods and its agent.
pub(crate) struct Node {
    pub(crate) world: World,
}

impl Node {
    pub(crate) fn open() -> Self {
        let node = Self {
            world: World::new("", &[]),
        };
        node.join(node.world.cgroup.path());
        node
    }
    /// Moves this thread into a cgroup, once for all sockets, because it takes long.
    fn join(&self, cgroup: &Path) {
        fs::write(cgroup.join("cgroup.threads"), gettid().to_string()).expect("join a cgroup");
    }
    fn leave(&self) {
        self.join(self.world.cgroup.path().parent().expect("a cgroup"));
    }
    pub(crate) fn restart(&mut self) {
        // The agent's process must not be in the cgroup whose sockets the hooks translate.
        self.leave();
        self.world.restart(SocketBalancing::All);
        self.join(self.world.cgroup.path());
    }

    /// Fails unless the maps of the socket hooks are empty; call it after all sockets are closed.
    pub(crate) fn expect_empty(&self) -> Result<(), String> {
        // A process that is being started has copies of all descriptors.
        let left = until(0, || [self.left::<V4>(), self.left::<V6>()].concat());
        match left[..] {
            [] => Ok(()),
            _ => Err(format!("left behind: {left:#?}")),
        }
    }
    fn left<A: Family>(&self) -> Vec<String> {
        let sockets = self.table::<SocketKey<A>, SocketEntry<A>>(A::SOCKETS);
        let sockets = sockets.entries().expect("readable");
        let buckets = self.table::<u32, SocketBucket<A>>(A::SOCKET_BUCKETS);
        let buckets = buckets.entries().expect("readable").into_iter();
        let buckets = buckets.filter(|(_, bucket)| bucket.key().is_some() || bucket.overflow != 0);
        let buckets = buckets.map(|(_, bucket)| format!("{bucket:?}"));
        let sockets = sockets.iter().map(|entry| format!("{entry:?}"));
        buckets.chain(sockets).collect()
    }
    /// Removes what earlier sequences have left: the entries of one that has failed, and all flows
    /// of the packet path. A socket of a later sequence may get the port of an earlier one; beside
    /// a flow with its tuple, its direct packets would get another port.
    pub(crate) fn clear(&self) {
        self.empty::<SocketKey<V4>, SocketEntry<V4>>(maps::SOCKETS_V4);
        self.empty::<SocketKey<V6>, SocketEntry<V6>>(maps::SOCKETS_V6);
        self.empty_flows::<V4>();
        self.empty_flows::<V6>();
    }
    fn empty_flows<A: Family>(&self) {
        let table = FlowTable::<A>::open(&layout_dir(self.world.agent.pin_dir()));
        table.and_then(|table| table.clear()).expect("emptied");
    }
    fn empty<K: Plain, V: Plain>(&self, map: &str) {
        let table = self.table::<K, V>(map);
        for (key, _) in table.entries().expect("readable") {
            table.delete(&key).expect("removed");
        }
    }
    fn table<K: Plain, V: Plain>(&self, map: &str) -> Table<K, V> {
        let pin = get_pinned(&map_path(self.world.agent.pin_dir(), map), false).expect("pinned");
        Table::new(pin).expect("a table")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.leave();
    }
}
