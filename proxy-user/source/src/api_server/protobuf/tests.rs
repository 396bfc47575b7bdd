// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decodes what a real kube-apiserver 1.36 sent. The files in `recorded` are its answers to
//! `curl -H 'Accept: application/vnd.kubernetes.protobuf'` and `-H 'Accept: application/json'`, the
//! latter without managedFields.

use std::{fs, io::Write, path::Path};

use control::model::{Converter, Object, Original};
use flate2::write::GzEncoder;
use http::{HeaderMap, header::CONTENT_ENCODING};
use k8s_openapi::api::{
    core::v1 as core, discovery::v1 as discovery, networking::v1 as networking,
};
use prost::{
    Message,
    bytes::{Bytes, BytesMut},
};
use rstest::rstest;

use super::{List, MAGIC, RawExtension, Unknown, WatchEvent, objects};
use crate::api_server::{
    follow::Followed,
    wire::{Compression, Encoding, GZIP, Page, Status, Unreadable, Watched},
};

fn recorded(file: &str) -> Bytes {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api_server/protobuf/recorded");
    fs::read(folder.join(file)).expect("recorded").into()
}

/// What the agent makes of a list, with the versions and annotations of its objects.
fn read<K: Followed>(page: &Page<K>) -> Vec<(Object, Option<String>, String)> {
    let mut converter = Converter::new("node-a");
    let objects = page.items.iter().map(|original| {
        let original = original.as_ref().expect("readable");
        let (object, warnings) = original.convert(&mut converter).expect("it has a name");
        assert_eq!(warnings, []);
        let metadata = original.meta();
        let annotations = format!("{:?}", metadata.annotations);
        (object, metadata.resource_version.clone(), annotations)
    });
    objects.collect()
}

fn compare<K: Followed>(name: &str, count: usize) {
    let list = |encoding: Encoding, ending| {
        let page = encoding.list::<K>(&recorded(&format!("{name}.{ending}")));
        page.expect("a list")
    };
    let protobuf = list(Encoding::Protobuf, "protobuf");
    let json = list(Encoding::Json, "json");
    assert_eq!(protobuf.items.len(), count);
    assert_eq!(read(&protobuf), read(&json));
    assert_eq!(protobuf.version, json.version);
    assert!(protobuf.version.parse::<u64>().is_ok());
}

#[test]
fn the_agent_reads_the_same_of_an_object_in_protobuf_and_in_json() {
    compare::<core::Service>("services", 2);
    compare::<discovery::EndpointSlice>("endpointslices", 2);
    compare::<core::Node>("nodes", 1);
    compare::<networking::ServiceCIDR>("servicecidrs", 2);
}

/// A watch as the server sends it: each event in a gzip member of its own, if they are compressed.
fn watch(is_compressed: bool) -> Vec<u8> {
    let plain = recorded("streamed-list.protobuf");
    if !is_compressed {
        return plain.to_vec();
    }
    let mut rest = BytesMut::from(&plain[..]);
    let mut members = Vec::new();
    while let Some(event) = Encoding::Protobuf.take_event(&mut rest).expect("events") {
        let mut member = GzEncoder::new(members, flate2::Compression::fast());
        let length = u32::try_from(event.len()).expect("short").to_be_bytes();
        for bytes in [&length[..], &event] {
            member.write_all(bytes).expect("compressed");
        }
        members = member.finish().expect("compressed");
    }
    members
}

#[rstest]
fn a_streamed_list_is_read_however_it_is_received(
    #[values(1, 7, 1 << 20)] piece: usize,
    #[values(false, true)] is_compressed: bool,
) {
    let mut headers = HeaderMap::new();
    if is_compressed {
        headers.insert(CONTENT_ENCODING, GZIP);
    }
    let mut compression = Compression::of(&headers);
    let mut received = BytesMut::new();
    let mut events = Vec::new();
    for bytes in watch(is_compressed).chunks(piece) {
        compression.add(bytes, &mut received).expect("gzip");
        let taken = |received: &mut _| Encoding::Protobuf.take_event(received).expect("events");
        while let Some(event) = taken(&mut received) {
            let event = Encoding::Protobuf.event::<core::Service>(event);
            events.push(match event.expect("an event").expect("no error") {
                Watched::Applied(service) => service.expect("readable").metadata.name,
                Watched::Bookmark { version, ends_list } => {
                    version.parse::<u64>().expect("a version");
                    ends_list.then(|| "end".to_owned())
                }
                Watched::Deleted(_) => panic!("another event"),
            });
        }
    }
    assert!(received.is_empty());
    let expected = ["cart", "plain", "end"].map(|name| Some(name.to_owned()));
    assert_eq!(events, expected);
}

/// Returns these bytes in the envelope of an object.
fn wrapped(raw: Vec<u8>) -> Bytes {
    let (type_meta, raw) = (None, raw.into());
    let unknown = Unknown { type_meta, raw };
    [MAGIC, &unknown.encode_to_vec()].concat().into()
}

/// Returns what is read of an event of a watch.
fn event<K: Followed>(kind: &str, raw: Bytes) -> Result<Watched<K>, Status> {
    let (kind, object) = (kind.to_owned(), Some(RawExtension { raw }));
    let bytes = WatchEvent { kind, object }.encode_to_vec();
    Encoding::Protobuf.event(bytes.into()).expect("an event")
}

#[test]
fn a_refusal_and_the_error_of_a_watch_are_understood() {
    let refusal = recorded("refusal.protobuf");
    let status = Encoding::Protobuf.status(&refusal).expect("a status");
    assert_eq!(status.code, 422);
    assert!(status.message.contains("sendInitialEvents"), "{status:?}");
    let Err(error) = event::<core::Node>("ERROR", refusal) else {
        panic!("another event")
    };
    assert_eq!(error, status);
}

#[test]
fn what_is_no_protobuf_of_kubernetes_is_an_error() {
    let too_long = [0xff; 8];
    let mut received = BytesMut::from(&too_long[..]);
    let taken = Encoding::Protobuf.take_event(&mut received);
    assert!(matches!(taken, Err(Unreadable::TooLong(0xffff_ffff))));
    let naked = Bytes::from(Unknown::default().encode_to_vec());
    for bytes in [naked, Bytes::from_static(b"{}"), Bytes::new()] {
        let list = Encoding::Protobuf.list::<core::Node>(&bytes);
        assert!(matches!(list, Err(Unreadable::NoEnvelope)));
    }
}

#[test]
fn changed_bytes_are_an_error_or_another_object_but_never_a_panic() {
    let mut random = fastrand::Rng::with_seed(7);
    let whole = recorded("endpointslices.protobuf");
    let (mut refused, mut unread) = (0, 0);
    for _ in 0..2_000 {
        let mut bytes = whole.to_vec();
        for _ in 0..4 {
            let place = random.usize(..bytes.len());
            bytes[place] = random.u8(..);
        }
        bytes.truncate(random.usize(4..=bytes.len()));
        let list = Encoding::Protobuf.list::<discovery::EndpointSlice>(&bytes.into());
        let Ok(page) = list else {
            refused += 1;
            continue;
        };
        for slice in page.items {
            match slice {
                Ok(slice) => drop(slice.convert(&mut Converter::new("node-a"))),
                Err(_) => unread += 1,
            }
        }
    }
    assert!((500..2_000).contains(&refused), "{refused}");
    assert!(unread > 0, "an object alone");
}

/// Returns a list of these objects as the server sends it.
fn list(items: Vec<Bytes>) -> Bytes {
    let metadata = None;
    wrapped(List { metadata, items }.encode_to_vec())
}

/// Returns a Service with nothing but metadata.
fn service(metadata: objects::ObjectMeta) -> Vec<u8> {
    let service = super::Service {
        metadata: Some(metadata),
        ..super::Service::default()
    };
    service.encode_to_vec()
}

#[test]
fn texts_that_are_no_utf8_are_read_with_replacement_characters() {
    let bytes = b"a\xffb".to_vec();
    let metadata = objects::ObjectMeta {
        labels: [("key".to_owned(), bytes.clone())].into(),
        annotations: [("key".to_owned(), bytes.clone())].into(),
        owner_references: vec![objects::OwnerReference {
            kind: bytes.clone(),
            name: bytes,
        }],
        ..objects::ObjectMeta::default()
    };
    let list = list(vec![service(metadata).into()]);
    let page = Encoding::Protobuf.list::<core::Service>(&list);
    let mut items = page.expect("a list").items;
    let metadata = items.remove(0).expect("readable").metadata;
    let owner = metadata.owner_references.expect("an owner").remove(0);
    let owner = [owner.kind, owner.name];
    let maps = [metadata.labels, metadata.annotations].map(|map| map.expect("any"));
    for text in maps.iter().map(|map| &map["key"]).chain(&owner) {
        assert_eq!(text, "a\u{fffd}b");
    }
}

#[test]
fn an_object_that_cannot_be_read_is_identified_and_the_others_of_its_list_are_read() {
    let named = |name: &str| {
        service(objects::ObjectMeta {
            name: Some(name.to_owned()),
            resource_version: Some("7".to_owned()),
            ..objects::ObjectMeta::default()
        })
    };
    // The type of the service: a text that is no UTF-8.
    let broken = [&named("two")[..], b"\x12\x03\x22\x01\xff"].concat();
    let items = [named("one"), broken.clone(), b"\x0f".to_vec()];
    let list = list(items.map(Bytes::from).to_vec());
    let page = Encoding::Protobuf.list::<core::Service>(&list);
    let items = page.expect("a list").items;
    assert!(items[0].is_ok());
    let [one, other] = [1, 2].map(|at| items[at].as_ref().expect_err("broken"));
    let names = [one, other].map(|unread| unread.metadata.name.as_deref());
    assert_eq!(names, [Some("two"), None]);

    let event = event::<core::Service>("MODIFIED", wrapped(broken));
    let Ok(Watched::Applied(Err(unread))) = event else {
        panic!("another event")
    };
    assert_eq!(unread.metadata.name.as_deref(), Some("two"));
    assert_eq!(unread.metadata.resource_version.as_deref(), Some("7"));
}
