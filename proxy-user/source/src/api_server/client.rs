// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The address of the API server and the agent's credentials: a kubeconfig file, or the pod's
//! service account together with the server's own address. Called by `api_server`.

use std::{
    fmt,
    path::{Path, PathBuf},
    slice,
    sync::Arc,
    time::Duration,
};

use control::causes::chain;
use http::{HeaderValue, Request, header};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{
        self,
        connect::{HttpConnector, capture_connection},
    },
    rt::{TokioExecutor, TokioTimer},
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use tower::{ServiceBuilder, service_fn};

use super::{
    breaker::Breaker,
    requests::{Counting, Requests},
    servers::{Connector, Servers},
};
use crate::SourceError;

/// How the server's log names a command; an agent adds its node.
pub(crate) const USER_AGENT: &str = concat!("portolan/", env!("CARGO_PKG_VERSION"));

/// The folder of a pod's service account, which the kubelet puts into every pod.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The longest time to wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// A connection without HTTP/2 that is silent for this long is dead: the server sends bookmarks
/// more often.
const SILENCE: Duration = Duration::from_secs(150);
/// A silent connection is asked for a sign of life after this time, and given up `ANSWER` later, so
/// that changes go on by another server within 45 s. KUBE: client-go does so after 30 s and 15 s.
/// The kernel's probes find a dead connection without HTTP/2 as fast, if no proxy stands between.
const PING: Duration = Duration::from_secs(20);
const ANSWER: Duration = Duration::from_secs(15);
const PROBE: Duration = Duration::from_secs(10);

/// How to reach the API server.
#[derive(Clone, Debug)]
pub struct Access {
    /// The file with credentials and an address; None: those of the pod's service account.
    kubeconfig: Option<PathBuf>,
    /// Addresses that replace the one in the file.
    masters: Vec<String>,
    servers: Servers,
}

impl Access {
    /// Chooses how to reach the API server. KUBE: `--master` has precedence over the address in the
    /// kubeconfig.
    ///
    /// The cluster IP in a pod's environment cannot be used here. On a starting node it works only
    /// after the agent has read the services from this server.
    pub fn new(kubeconfig: Option<PathBuf>, mut masters: Vec<String>) -> Result<Self, SourceError> {
        masters.retain(|master| !master.is_empty());
        if kubeconfig.is_none() && masters.is_empty() {
            return Err(SourceError::NoAddress);
        }
        Ok(Self {
            kubeconfig,
            masters,
            servers: Servers::default(),
        })
    }

    /// Returns the servers to which connections go.
    pub(super) fn servers(&self) -> &Servers {
        &self.servers
    }

    pub(crate) fn unusable(&self, reason: String) -> SourceError {
        SourceError::Access {
            access: self.to_string(),
            reason,
        }
    }

    /// Returns a client for this API server, whose requests are counted in `requests`. The server's
    /// log of requests names `agent`.
    pub(crate) async fn client(
        &self,
        requests: &Requests,
        agent: &str,
    ) -> Result<Client, SourceError> {
        let invalid = |reason| self.unusable(reason);
        let masters = self.masters.iter().map(|master| address(master));
        let masters: Vec<_> = masters.collect::<Result<_, _>>().map_err(invalid)?;
        let mut config = match (&self.kubeconfig, masters.first()) {
            (Some(file), _) => {
                let content =
                    Kubeconfig::read_from(file).map_err(|error| invalid(chain(&error)))?;
                configuration(content).await.map_err(invalid)?
            }
            (None, Some(first)) => service_account(SERVICE_ACCOUNT.as_ref(), first)
                .await
                .map_err(invalid)?,
            (None, None) => return Err(SourceError::NoAddress),
        };
        if let Some(first) = masters.first() {
            config.cluster_url = first.clone();
        }
        let given = if masters.is_empty() {
            slice::from_ref(&config.cluster_url)
        } else {
            &masters[..]
        };
        // Others do not have this path, and without a check of certificates anybody may be one.
        let has_path = given.iter().any(|server| server.path().len() > 1);
        self.servers
            .give(given, has_path || config.accept_invalid_certs);
        let agent = HeaderValue::from_str(agent);
        let agent = agent.unwrap_or(HeaderValue::from_static(USER_AGENT));
        config.headers.push((header::USER_AGENT, agent));
        config.connect_timeout = Some(CONNECT);
        config.read_timeout = Some(SILENCE);
        config.reset_reader_on_write = true;
        // `follow` has its own pauses and logs what it waits for.
        config.default_retry = false;
        let host = config.cluster_url.authority().map(ToString::to_string);
        let counting = requests.to(&host.unwrap_or_default());
        connect(config, &counting, &self.servers).map_err(|error| invalid(chain(&error)))
    }
}

/// Returns a client that notices a dead connection, and then connects to another server: by pings
/// of HTTP/2, which all watches share, or by TCP's keepalive; and a useless server (`breaker`). The
/// client of kube's own builder knows none of these.
fn connect(config: Config, counting: &Counting, servers: &Servers) -> kube::Result<Client> {
    if config.proxy_url.is_some() || config.auth_info.exec.is_some() {
        // The builder knows the handshakes of proxies, and when certificates of a program expire.
        return Ok(ClientBuilder::try_from(config)?
            .with_layer(counting)
            .build());
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(PING));
    tcp.set_keepalive_interval(Some(PROBE));
    tcp.set_keepalive_retries(Some(1));
    tcp.set_tcp_user_timeout(Some(PING + PROBE));
    let mut tls = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into();
        let name = name.map_err(|error| kube::Error::Service(Box::new(error)))?;
        tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    let mut connector = TimeoutConnector::new(tls.enable_all_versions().wrap_connector(tcp));
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let connector = Connector {
        servers: servers.clone(),
        inner: connector,
        last: Arc::default(),
    };
    let client = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        // A connection that stands is used for the next request, whenever that comes.
        .pool_idle_timeout(None::<Duration>)
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(ANSWER)
        .http2_keep_alive_while_idle(true)
        .build::<_, Body>(connector);
    let breaker = Breaker::default();
    let client = service_fn(move |mut request: Request<Body>| {
        let connection = capture_connection(&mut request);
        breaker.clone().answer(client.request(request), connection)
    });
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .service(client);
    Ok(ClientBuilder::new(service, config.default_namespace)
        .with_layer(counting)
        .build())
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let masters = self.masters.join(",");
        match &self.kubeconfig {
            Some(file) if masters.is_empty() => write!(f, "of kubeconfig {}", file.display()),
            Some(file) => write!(f, "{masters} (kubeconfig {})", file.display()),
            None => f.write_str(&masters),
        }
    }
}

/// Reads a kubeconfig. kube reads the files of the token and of the CA certificates again from time
/// to time, because both rotate; what stands in the kubeconfig itself is read once.
async fn configuration(content: Kubeconfig) -> Result<Config, String> {
    let ca = ca_file(&content);
    let config = Config::from_custom_kubeconfig(content, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| chain(&error))?;
    config.root_cert_file = ca;
    Ok(config)
}

/// Returns the file of CA certificates for the server of the current context.
fn ca_file(content: &Kubeconfig) -> Option<PathBuf> {
    let name = content.current_context.as_ref()?;
    let context = content.contexts.iter().find(|one| one.name == *name)?;
    let name = &context.context.as_ref()?.cluster;
    let cluster = content.clusters.iter().find(|one| one.name == *name)?;
    let cluster = cluster.cluster.as_ref()?;
    let file = cluster.certificate_authority.as_ref();
    // KUBE: certificates in the kubeconfig have precedence.
    file.filter(|_| cluster.certificate_authority_data.is_none())
        .map(PathBuf::from)
}

/// Returns a configuration for the server with the CA certificates and the token in a folder. The
/// certificates are also read here: without any, the kube crate first loads those of the system. A
/// container does not have them, so that would fail.
async fn service_account(folder: &Path, server: &http::Uri) -> Result<Config, String> {
    let file = |name: &str| folder.join(name);
    let content = json!({
        "clusters": [{"name": "here", "cluster": {
            "server": server.to_string(), "certificate-authority": file("ca.crt"),
        }}],
        "users": [{"name": "pod", "user": {"tokenFile": file("token")}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "pod"}}],
        "current-context": "here",
    });
    let content: Kubeconfig = serde_json::from_value(content).map_err(|error| chain(&error))?;
    configuration(content).await
}

/// Parses the address of a server. KUBE: an address without a scheme is an https address.
fn address(master: &str) -> Result<http::Uri, String> {
    let full = if master.contains("://") {
        master.to_owned()
    } else {
        format!("https://{master}")
    };
    let reason =
        |error| format!("{master:?} is no address ({error}); write it like https://192.0.2.1:6443");
    let uri: http::Uri = full
        .parse()
        .map_err(|error: http::uri::InvalidUri| reason(error.to_string()))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("https" | "http"), Some(_)) => Ok(uri),
        _ => Err(reason("neither https nor http".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_kubeconfig_and_master_access_is_refused() {
        // KUBE: an empty flag is none.
        let fault = Access::new(None, vec![String::new()]).expect_err("no address");
        assert!(fault.to_string().contains("--master"), "{fault}");
        let masters = ["192.0.2.1:6443", "192.0.2.2:6443"].map(str::to_owned);
        let access = Access::new(None, masters.to_vec()).expect("addresses");
        assert_eq!(access.to_string(), "192.0.2.1:6443,192.0.2.2:6443");
    }

    #[test]
    fn an_api_server_address_without_a_scheme_means_https_and_an_invalid_one_is_named() {
        for (given, expected) in [
            ("192.0.2.1:6443", "https://192.0.2.1:6443/"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080/"),
            ("https://[fd00::1]:6443", "https://[fd00::1]:6443/"),
        ] {
            assert_eq!(address(given).expect("valid").to_string(), expected);
        }
        for given in ["ftp://192.0.2.1", "https://", "a b"] {
            let fault = address(given).expect_err("invalid");
            let is_named = fault.contains(given) && fault.contains("write it like");
            assert!(is_named, "{fault}");
        }
    }

    #[tokio::test]
    async fn the_service_account_gives_the_cluster_ca_and_the_token_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let pem = "-----BEGIN CERTIFICATE-----\nAAEC\n-----END CERTIFICATE-----\n";
        std::fs::write(folder.path().join("ca.crt"), pem).expect("written");
        std::fs::write(folder.path().join("token"), "secret").expect("written");
        let server = address("192.0.2.1:6443").expect("an address");
        let config = service_account(folder.path(), &server).await.expect("read");
        assert_eq!(config.cluster_url, server);
        assert_eq!(config.root_cert, Some(vec![vec![0, 1, 2]]));
        let file = |name: &str| Some(folder.path().join(name));
        assert_eq!(config.root_cert_file, file("ca.crt"));
        let token = config.auth_info.token_file.map(PathBuf::from);
        assert_eq!(token, file("token"));
    }
}
