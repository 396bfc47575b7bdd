// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the changes whose arrival at the agents is timed to the API server.

use std::{fmt, path::Path};

use anyhow::Result;
use k8s_openapi::{
    NamespaceResourceScope,
    api::{core::v1::Service, discovery::v1::EndpointSlice},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    lines::{Mark, Subject},
    objects::{
        FIRST_PORT, FULL, MANAGER, MARKED_NAMESPACE, MARKED_SERVICE, MARKED_SLICE, address,
        address_of_mark, endpoint, trigger,
    },
    world::World,
};
use crate::{load::records, node::kubeconfig};

/// Writes changes of the marked objects to the API server.
pub(super) struct Writer<'w> {
    world: &'w World,
    runtime: tokio::runtime::Runtime,
    client: Client,
    /// The numbers of the last changes of the slice and of the service.
    slice: u16,
    service: u16,
}

impl<'w> Writer<'w> {
    pub(super) fn new(world: &'w World, kubeconfig: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let client = world
            .server()
            .enter(|| runtime.block_on(kubeconfig::client(kubeconfig)))??;
        Ok(Self {
            world,
            runtime,
            client,
            slice: 0,
            service: 0,
        })
    }

    /// Returns the last change of the slice; None before the first one.
    pub(super) fn last(&self) -> Option<Mark> {
        (self.slice > 0).then(|| Subject::Slice.number(self.slice))
    }

    /// Replaces the slice's first endpoint, as when a pod is replaced.
    pub(super) fn change_slice(&mut self) -> Result<Mark> {
        let mark = self.slice + 1;
        let first = endpoint(address_of_mark(mark), u32::from(mark));
        let others = (1..FULL).map(|number| endpoint(address(number), number));
        let endpoints: Vec<_> = std::iter::once(first).chain(others).collect();
        let annotations = trigger(&Timestamp::now());
        let patch = json!({"metadata": {"annotations": annotations}, "endpoints": endpoints});
        self.patch::<EndpointSlice>(MARKED_SLICE, patch)?;
        self.slice = mark;
        Ok(Subject::Slice.number(mark))
    }

    /// Gives the service another port.
    pub(super) fn change_service(&mut self) -> Result<Mark> {
        let mark = self.service + 1;
        let port =
            json!({"protocol": "TCP", "port": FIRST_PORT + mark, "targetPort": records::PORT});
        self.patch::<Service>(MARKED_SERVICE, json!({"spec": {"ports": [port]}}))?;
        self.service = mark;
        Ok(Subject::Service.number(mark))
    }

    fn patch<K>(&self, name: &str, patch: Value) -> Result<()>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + fmt::Debug + DeserializeOwned,
    {
        let objects = Api::<K>::namespaced(self.client.clone(), MARKED_NAMESPACE);
        let manager = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(patch);
        let work = objects.patch(name, &manager, &patch);
        let network = self.world.server();
        network.enter(|| self.runtime.block_on(work))??;
        Ok(())
    }
}
