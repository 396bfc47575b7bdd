// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The demo: a node and its pods in network namespaces, served by the real agent from the manifests
//! under deploy/demo, and real connections through them. `cargo xtask demo` runs it.

#[path = "../tests/support/mod.rs"]
mod support;

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::Ordering,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use comfy_table::{ContentArrangement, Table, presets::UTF8_FULL_CONDENSED};

use support::{
    agent::{self, Agent, Manifests, Options},
    cases::Flow,
    cgroup::Cgroup,
    cluster,
    flows::{Flows, SocketBalancing},
    interrupt::{self, INTERRUPTED},
    layout::Layout,
    netns,
    probe::{Attempt, Outcome},
    topology::{Plumbing, Topology},
};

/// Shows the main job: connections to services' addresses reach pods.
#[derive(Parser)]
#[command(name = "demo")]
struct Arguments {
    /// Leave the node running and print the commands to look around with.
    #[arg(long)]
    keep: bool,
    /// How pods are joined to the node.
    #[arg(long, default_value = "bridge")]
    plumbing: Plumbing,
    /// Folder of manifests; their addresses are what the demo calls.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/demo"))]
    manifests: PathBuf,
    /// The agent; the one built beside the demo unless given.
    #[arg(long)]
    binary: Option<PathBuf>,
}

const NODE: &str = "node-a";
/// As deploy/demo/node.yaml has it.
const NODE_VERSION: u64 = 1;
const TABLE_WIDTH: u16 = 150;
/// Lines of a map's dump that are shown.
const DUMP_LINES: usize = 14;
const DUMPED_MAP: &str = "frontends_v4";

/// Who is who, for people to read.
const HOSTS: [(&str, &[&str]); 6] = [
    ("node-a", &["192.168.40.2", "fd00:c0::2"]),
    ("client pod", &["10.40.1.9", "fd00:40:0:1::9"]),
    ("web-1", &["10.40.1.10", "fd00:40:0:1::10"]),
    ("web-2", &["10.40.1.11", "fd00:40:0:1::11"]),
    ("web-3 on node-b", &["10.40.2.10", "fd00:40:0:2::10"]),
    ("outside client", &["203.0.113.9", "2001:db8:113::9"]),
];
/// Of [`HOSTS`], the pods on the node.
const PODS: [&str; 3] = ["client pod", "web-1", "web-2"];

/// One line of the table: a flow in the words of conformance/FORMAT.md, and the rule behind it.
struct Exhibit {
    what: &'static str,
    flow: &'static str,
    rule: &'static str,
}

const EXHIBITS: [Exhibit; 15] = [
    Exhibit {
        what: "A pod calls a cluster IP",
        flow: "{from: 10.40.1.9, to: '172.30.0.10:80', expect: {masquerade: false,
                backends: ['10.40.1.10:8080', '10.40.1.11:8080', '10.40.2.10:8080']}}",
        rule: "Any ready endpoint, by chance. Pods keep their source: answers find their way back.",
    },
    Exhibit {
        what: "The same over IPv6",
        flow: "{from: 'fd00:40:0:1::9', to: '[fd00:30::10]:80', expect: {masquerade: false,
                backends: ['[fd00:40:0:1::10]:8080', '[fd00:40:0:1::11]:8080', '[fd00:40:0:2::10]:8080']}}",
        rule: "Both families of a dual-stack service are served alike.",
    },
    Exhibit {
        what: "A pod asks a name server over UDP",
        flow: "{from: 10.40.1.9, to: '172.30.0.53:53', protocol: UDP, expect: {masquerade: false,
                backends: ['10.40.1.11:5353', '10.40.2.10:5353']}}",
        rule: "Each socket's datagrams are one flow with one endpoint; the answer comes from the address asked.",
    },
    Exhibit {
        what: "An outside client calls the node port",
        flow: "{from: 203.0.113.9, to: '192.168.40.2:30080', expect: {masquerade: true,
                backends: ['10.40.1.10:8080', '10.40.1.11:8080', '10.40.2.10:8080']}}",
        rule: "externalTrafficPolicy Cluster: any endpoint on any node, so the source becomes the node's.",
    },
    Exhibit {
        what: "... and the load balancer address",
        flow: "{from: 203.0.113.9, to: '198.51.100.10:80', expect: {masquerade: true,
                backends: ['10.40.1.10:8080', '10.40.1.11:8080', '10.40.2.10:8080']}}",
        rule: "The node accepts the load balancer's address itself; policy Cluster again.",
    },
    Exhibit {
        what: "... and over IPv6",
        flow: "{from: '2001:db8:113::9', to: '[2001:db8:51::10]:80', expect: {masquerade: true,
                backends: ['[fd00:40:0:1::10]:8080', '[fd00:40:0:1::11]:8080', '[fd00:40:0:2::10]:8080']}}",
        rule: "Masquerading is done in eBPF, for both families.",
    },
    Exhibit {
        what: "An outside client calls a service of policy Local",
        flow: "{from: 203.0.113.9, to: '198.51.100.30:80', expect: {masquerade: false,
                backends: ['10.40.1.11:8080']}}",
        rule: "externalTrafficPolicy Local: only pods on this node, which see the client's own address.",
    },
    Exhibit {
        what: "A pod calls the same address",
        flow: "{from: 10.40.1.9, to: '198.51.100.30:80', expect: {
                backends: ['10.40.1.11:8080', '10.40.2.10:8080']}}",
        rule: "From inside the cluster the address stands for the cluster IP: all endpoints.",
    },
    Exhibit {
        what: "A pod calls a service with client affinity",
        flow: "{from: 10.40.1.9, to: '172.30.0.20:80', repeat: 40, expect: {sticky: true,
                backends: ['10.40.1.10:8080', '10.40.1.11:8080', '10.40.2.10:8080']}}",
        rule: "sessionAffinity ClientIP: the endpoint of the first connection, for 600 s after the last.",
    },
    Exhibit {
        what: "A pod calls a service without endpoints",
        flow: "{from: 10.40.1.9, to: '172.30.0.40:80', expect: reject}",
        rule: "Nobody can answer: the kernel program does, with a refusal, at once.",
    },
    Exhibit {
        what: "An outside client calls its node port",
        flow: "{from: 203.0.113.9, to: '192.168.40.2:30040', expect: reject}",
        rule: "The same at a node port: no waiting for a time-out.",
    },
    Exhibit {
        what: "A pod calls a cluster IP's other port",
        flow: "{from: 10.40.1.9, to: '172.30.0.10:81', protocol: UDP, expect: reject}",
        rule: "A port that a cluster IP does not serve is refused: ICMP port unreachable for UDP.",
    },
    Exhibit {
        what: "A pod reaches itself through its service",
        flow: "{from: 10.40.1.10, to: '172.30.0.50:80', expect: {masquerade: true,
                backends: ['10.40.1.10:8080']}}",
        rule: "Hairpin: masqueraded, else the pod would answer itself without passing the node.",
    },
    Exhibit {
        what: "A process on the node calls a cluster IP",
        flow: "{from: 192.168.40.2, to: '172.30.0.10:80', expect: {
                backends: ['10.40.1.10:8080', '10.40.1.11:8080', '10.40.2.10:8080']}}",
        rule: "Translated once, at its socket: the packets carry the endpoint's address from the start.",
    },
    Exhibit {
        what: "... and a service without endpoints",
        flow: "{from: 192.168.40.2, to: '172.30.0.40:80', expect: reject}",
        rule: "connect fails with ECONNREFUSED; no packet leaves.",
    },
];

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether everything went as it should.
fn run(arguments: &Arguments) -> Result<bool> {
    netns::check_privilege()?;
    agent::prepare_bpffs()?;
    interrupt::catch()?;
    let binary = match &arguments.binary {
        Some(binary) => binary.clone(),
        None => built_agent()?,
    };
    let endpoints = cluster::endpoints(&read_all(&arguments.manifests)?, NODE)?;
    let flows: Vec<Flow> = EXHIBITS
        .iter()
        .map(|exhibit| serde_saphyr::from_str(exhibit.flow).context(exhibit.what))
        .collect::<Result<_>>()?;
    let topology = Topology::build(layout(&flows)?, arguments.plumbing)?;
    let cgroup = Cgroup::new()?;
    let mut servers = Flows::new(
        &topology,
        &cgroup,
        &endpoints,
        SocketBalancing::Host,
        &INTERRUPTED,
    )?;
    let ranges = ["10.40.0.0/16".parse()?, "fd00:40::/48".parse()?];
    let options = Options {
        binary: &binary,
        node_name: NODE,
        cluster_cidrs: &ranges,
        config: "",
        socket_balancing: SocketBalancing::Host.name(),
        kubeconfig: None,
        cgroup_root: cgroup.path(),
    };
    println!(
        "A node with {} pods, another node and an outside client, each in a network namespace; one agent,\n\
         started from the manifests in {}.\n",
        PODS.len(),
        fs::canonicalize(&arguments.manifests)?.display(),
    );
    let manifests = Manifests::Folder(&arguments.manifests);
    let mut agent = Agent::start(&topology.node, &options, &manifests)?;
    let shown = agent
        .wait_for(NODE_VERSION)
        .context("start the agent")
        .and_then(|()| show(&flows, &mut servers, &agent, &binary));
    let as_expected = match shown {
        Ok(as_expected) => as_expected,
        Err(error) => {
            for line in agent.log_tail(25) {
                eprintln!("  | {line}");
            }
            return Err(error);
        }
    };
    if arguments.keep {
        look_around(&topology, &agent, &binary);
        while !INTERRUPTED.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(100));
        }
        println!("Cleaning up.");
    }
    Ok(as_expected)
}

fn show(flows: &[Flow], servers: &mut Flows<'_>, agent: &Agent<'_>, binary: &Path) -> Result<bool> {
    let names = names()?;
    let mut table = new_table(["what was done", "what happened", "the rule behind it", ""]);
    let mut unexpected = Vec::new();
    for (exhibit, flow) in EXHIBITS.iter().zip(flows) {
        let (Some(to), Some(expect)) = (flow.to, &flow.expect) else {
            bail!(
                "{}: the flow says nothing to call or to expect",
                exhibit.what
            );
        };
        let (attempts, verdict) = servers
            .observe(flow, to, expect)
            .with_context(|| exhibit.what.to_owned())?;
        table.add_row([
            format!(
                "{}\n{} -> {to} {}",
                exhibit.what,
                flow.from,
                flow.protocol.name()
            ),
            tell(&attempts, &names),
            exhibit.rule.to_owned(),
            if verdict.is_ok() { "ok" } else { "UNEXPECTED" }.to_owned(),
        ]);
        if let Err(reason) = verdict {
            unexpected.push(format!("{}: {reason}", exhibit.what));
        }
    }
    println!("{table}\n");
    let map = portolan::datapath::maps::pins::map_path(agent.pin_dir(), DUMPED_MAP);
    println!("The map of IPv4 frontends, as any tool can read it:\n");
    print_command(
        agent,
        "bpftool",
        &["map", "dump", "pinned", &map.display().to_string()],
        Some(DUMP_LINES),
    )
    .unwrap_or_else(|error| unexpected.push(format!("{error:#}")));
    println!("The services, read from the maps:\n");
    let pins = agent.pin_dir().display().to_string();
    print_command(
        agent,
        &binary.display().to_string(),
        &["services", "--pin-dir", &pins],
        None,
    )
    .unwrap_or_else(|error| unexpected.push(format!("{error:#}")));
    for reason in &unexpected {
        println!("unexpected: {reason}");
    }
    if unexpected.is_empty() {
        println!("All as it should be.");
    }
    Ok(unexpected.is_empty())
}

/// Prints a command and what it says, up to `lines` lines.
fn print_command(
    agent: &Agent<'_>,
    program: &str,
    args: &[&str],
    lines: Option<usize>,
) -> Result<()> {
    let output = agent.namespace().feed(program, args, "")?;
    let shown = Path::new(program)
        .file_name()
        .map_or(program.into(), |name| name.to_string_lossy());
    println!("$ {shown} {}", args.join(" "));
    let all: Vec<_> = output.lines().collect();
    let count = lines.unwrap_or(all.len()).min(all.len());
    for line in &all[..count] {
        println!("{line}");
    }
    if count < all.len() {
        println!("... {} more lines", all.len() - count);
    }
    println!();
    Ok(())
}

/// What became of a flow's connections, for people.
fn tell(attempts: &[Attempt], names: &BTreeMap<IpAddr, &str>) -> String {
    let name = |ip: IpAddr| names.get(&ip).copied().unwrap_or("a gateway of node-a");
    let mut answered: BTreeMap<&str, usize> = BTreeMap::new();
    let mut seen: BTreeMap<IpAddr, &str> = BTreeMap::new();
    let mut other: BTreeMap<String, usize> = BTreeMap::new();
    for attempt in attempts {
        match &attempt.outcome {
            Outcome::Answered(answer) => {
                *answered.entry(name(answer.by.ip())).or_default() += 1;
                seen.insert(answer.seen.ip(), name(answer.seen.ip()));
            }
            Outcome::Refused => *other.entry("refused".to_owned()).or_default() += 1,
            Outcome::Silence => *other.entry("no answer".to_owned()).or_default() += 1,
            outcome => *other.entry(format!("{outcome:?}")).or_default() += 1,
        }
    }
    let mut lines = Vec::new();
    if !answered.is_empty() {
        let counts: Vec<_> = answered
            .iter()
            .map(|(by, count)| format!("{by}: {count}"))
            .collect();
        lines.push(format!("answered by {}", counts.join(", ")));
        let sources: Vec<_> = seen
            .iter()
            .map(|(ip, who)| format!("{ip} ({who})"))
            .collect();
        lines.push(format!("source seen: {}", sources.join(", ")));
    }
    if !other.is_empty() {
        let slowest = attempts
            .iter()
            .map(|attempt| attempt.after)
            .max()
            .unwrap_or_default();
        lines.extend(
            other
                .iter()
                .map(|(what, count)| format!("{count} {what}, within {slowest:.1?}")),
        );
    }
    lines.join("\n")
}

fn look_around(topology: &Topology, agent: &Agent<'_>, binary: &Path) {
    let (node, pins, binary) = (
        topology.node.path(),
        agent.pin_dir().display(),
        binary.display(),
    );
    let layout = portolan::datapath::maps::pins::layout_dir(agent.pin_dir());
    println!("\nThe node keeps running. To look around, in another terminal, as root:\n");
    println!("  nsenter --net={node} ip -brief address             # inside the node");
    for (number, pod) in topology.pods.iter().enumerate() {
        println!(
            "  nsenter --net={} bash    # {} (veth{number})",
            pod.path(),
            pod.name()
        );
    }
    println!(
        "  nsenter --net={} bash    # the outside client",
        topology.outside.path()
    );
    println!("  nsenter --net={node} curl -s http://127.0.0.1:10256/healthz");
    for command in ["services", "backends", "flows", "affinity"] {
        println!("  {binary} {command} --pin-dir {pins}");
    }
    println!("  ls {}", layout.display());
    println!(
        "  bpftool map dump pinned {}",
        layout.join("flows_v4").display()
    );
    println!(
        "  edit the manifests in {}: changes are followed",
        agent.manifests().display()
    );
    println!(
        "\nCtrl-C (or kill {}) ends it and removes everything.",
        std::process::id()
    );
}

fn layout(flows: &[Flow]) -> Result<Layout> {
    let addresses = |wanted: &str| -> Result<Vec<IpAddr>> {
        let host = HOSTS.iter().find(|(name, _)| *name == wanted);
        let (_, texts) = host.with_context(|| format!("no host {wanted}"))?;
        texts
            .iter()
            .map(|text| text.parse().context(*text))
            .collect()
    };
    let mut layout = Layout {
        node: addresses(NODE)?,
        pods: PODS
            .iter()
            .map(|pod| addresses(pod))
            .collect::<Result<_>>()?,
        remote: addresses("web-3 on node-b")?.into_iter().collect(),
        outside: addresses("outside client")?.into_iter().collect(),
        ..Layout::default()
    };
    let called = flows
        .iter()
        .filter_map(|flow| flow.to)
        .map(|to: SocketAddr| to.ip());
    layout.unowned = called.filter(|ip| layout.owner(*ip).is_none()).collect();
    Ok(layout)
}

fn names() -> Result<BTreeMap<IpAddr, &'static str>> {
    let mut names = BTreeMap::new();
    for (name, addresses) in HOSTS {
        for text in addresses {
            names.insert(text.parse().context(*text)?, name);
        }
    }
    Ok(names)
}

fn new_table(header: [&str; 4]) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(TABLE_WIDTH)
        .set_header(header);
    table
}

/// The text of every manifest, as one stream of documents.
fn read_all(folder: &Path) -> Result<String> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .with_context(|| format!("read folder {}", folder.display()))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "yaml")
    });
    files.sort();
    let texts: Vec<_> = files
        .iter()
        .map(|file| fs::read_to_string(file).with_context(|| format!("read {}", file.display())))
        .collect::<Result<_>>()?;
    Ok(texts.join("\n---\n"))
}

/// target/PROFILE/portolan, seen from target/PROFILE/examples/demo.
fn built_agent() -> Result<PathBuf> {
    let own = std::env::current_exe().context("find out where the demo lies")?;
    let binary = own
        .parent()
        .and_then(Path::parent)
        .map(|folder| folder.join("portolan"));
    match binary {
        Some(binary) if binary.is_file() => Ok(binary),
        _ => bail!(
            "no agent beside {}: build it (cargo build -p proxy-user) or name it with --binary",
            own.display()
        ),
    }
}
