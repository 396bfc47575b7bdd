// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The Gateway API at the API server: its objects are followed while the server has these kinds.
//! Started by `api_server`.

use std::time::Duration;

use control::{
    causes::chain,
    model::{Kind, gateway::GROUP, original},
};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use tokio::{sync::mpsc, time::sleep};

use super::{
    follow::{Event, Message, UPGRADE, follow},
    requests::Requests,
    watch::{Selector, kinds},
};

/// The pause before asking again what the server knows, when it gave no answer.
const PAUSE: Duration = Duration::from_secs(5);

/// Fails if the messages' receiver is gone.
type Sent = Result<(), mpsc::error::SendError<Message>>;

/// Follows the objects of the Gateway API until the messages' receiver is gone. While the server
/// does not have these kinds, it is only asked for them now and then.
pub(super) async fn follow_all(client: Client, requests: Requests, sender: mpsc::Sender<Message>) {
    if served(&client, &sender).await.is_err() {
        return;
    }
    let all = Selector::default();
    tokio::join!(
        follow::<Namespace>(&client, &all, &requests, &sender),
        follow::<original::GatewayClass>(&client, &all, &requests, &sender),
        follow::<original::Gateway>(&client, &all, &requests, &sender),
        follow::<original::TCPRoute>(&client, &all, &requests, &sender),
        follow::<original::UDPRoute>(&client, &all, &requests, &sender),
        follow::<original::ReferenceGrant>(&client, &all, &requests, &sender),
    );
}

/// Waits until the server has these kinds; fails if the messages' receiver is gone.
async fn served(client: &Client, sender: &mpsc::Sender<Message>) -> Sent {
    let mut was_reported = false;
    loop {
        let answer = serves(client).await;
        if was_reported && answer.is_ok() {
            sender.send(Message::Fine(Kind::GatewayClass)).await?;
        }
        was_reported = answer.is_err();
        match answer {
            Ok(true) => return Ok(()),
            Ok(false) => {
                nothing(sender).await?;
                sleep(UPGRADE).await;
            }
            Err(error) => {
                let message = Message::Fault(Kind::GatewayClass, chain(&error));
                sender.send(message).await?;
                sleep(PAUSE).await;
            }
        }
    }
}

/// Whether the server has Gateways and routes of layer 4 in the version that is read here.
async fn serves(client: &Client) -> kube::Result<bool> {
    let kinds = kinds(client, &format!("{GROUP}/v1")).await?;
    let has = |kind: &str| kinds.iter().any(|one| one == kind);
    Ok(has("Gateway") && (has("TCPRoute") || has("UDPRoute")))
}

/// Says that there is no object of these kinds.
async fn nothing(sender: &mpsc::Sender<Message>) -> Sent {
    for kind in Kind::OF_GATEWAYS {
        for event in [Event::Init, Event::InitDone] {
            sender.send(Message::Event(kind, event)).await?;
        }
    }
    Ok(())
}
