// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures how well clients are still served while a node is attacked: each attack of
//! `lab::attacks` with no proxy, with portolan, with portolan whose agent has ended, and with
//! kube-proxy in mode nftables. Needs root. `cargo xtask bench attacks` calls it.
//!
//! Every proxy gets a new node for every attack. A missed goal is no failure of the program: it is
//! named in the report.

mod report;

use std::{
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::Duration,
};

use anyhow::{Result, ensure};
use clap::Parser;
use lab::{
    attacks::{
        Outcome, deaf, many,
        proxies::{Programs, Proxy, Served},
        short::{self, Closes},
        spoof,
        syn::{self, From},
        udp,
        world::World,
    },
    interrupt::{self, INTERRUPTED},
    node::{binary, netns::check_privilege, topology::Plumbing},
};

use report::{Report, Row};

/// Attacks a node that is served by each proxy
#[derive(Parser)]
struct Arguments {
    /// What to do to the node; comma-separated
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "short-client-closes,short-server-closes,syn-from-outside,syn-from-pod,udp,many,deaf,spoof"
    )]
    attacks: Vec<Attack>,
    /// Who serves
    #[arg(
        long,
        value_delimiter = ',',
        value_enum,
        default_value = "direct,portolan,portolan-alone,nftables"
    )]
    proxies: Vec<Proxy>,
    /// How pods are joined to the node
    #[arg(long, value_enum, default_value = "bridge")]
    plumbing: Plumbing,
    /// Seconds of each attack and fewer connections, in place of minutes; writes no report unless
    /// --report is given
    #[arg(long)]
    quick: bool,
    /// The folder of the report [default: lab/report]
    #[arg(long)]
    report: Option<PathBuf>,
    /// The program kube-proxy, for nftables
    #[arg(long)]
    kube_proxy: Option<PathBuf>,
    /// The agent's binary; default: the one beside this program
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Handed over by `cargo bench`
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Attack {
    /// Short connections through a node port with one endpoint, as fast as six pods make them
    ShortClientCloses,
    /// The same where the endpoint closes first
    ShortServerCloses,
    /// A SYN flood from outside at a node port
    SynFromOutside,
    /// A SYN flood from a pod at a cluster IP
    SynFromPod,
    /// A flood of datagrams at a node port, and queries to the cluster IP
    Udp,
    /// Very many open connections, and new ones for a long time
    Many,
    /// One of two pods drops SYNs
    Deaf,
    /// A pod forges another's packets
    Spoof,
}

/// Size and duration of the attacks.
struct Effort {
    windows: u32,
    flood: Duration,
    spoof: Duration,
    open: u32,
    /// Number of connections that are open at once in the attack `many`; `long` is how long new
    /// ones are made.
    many: u32,
    long: Duration,
    /// Entries of portolan's flow table in the attack `many`.
    flows: u32,
}

const FULL: Effort = Effort {
    windows: 120,
    flood: Duration::from_secs(60),
    spoof: Duration::from_secs(30),
    open: 1_000,
    many: 200_000,
    long: Duration::from_secs(600),
    flows: 1 << 20,
};

const QUICK: Effort = Effort {
    windows: 5,
    flood: Duration::from_secs(10),
    spoof: Duration::from_secs(4),
    open: 1_000,
    many: 6_000,
    long: Duration::from_secs(15),
    flows: 1 << 15,
};

const WINDOW: Duration = Duration::from_secs(5);
const DEAF: u32 = 24;
const PER_SECOND: u32 = 2_000;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    check_privilege()?;
    interrupt::catch()?;
    let programs = Programs {
        portolan: binary::find(arguments.binary.as_deref())?,
        kube_proxy: arguments.kube_proxy.clone(),
    };
    ensure!(
        programs.kube_proxy.is_some() || !arguments.proxies.contains(&Proxy::Nftables),
        "nftables needs --kube-proxy; cargo xtask bench attacks gives it"
    );
    let effort = if arguments.quick { &QUICK } else { &FULL };
    let default = (!arguments.quick).then(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("report"));
    let folder = arguments.report.clone().or(default);
    let mut report = Report::new(arguments.plumbing, arguments.quick);
    for attack in &arguments.attacks {
        let mut rows = Vec::new();
        for proxy in arguments
            .proxies
            .iter()
            .filter(|proxy| attack.fits(**proxy))
        {
            ensure!(!INTERRUPTED.load(Ordering::Relaxed), "interrupted");
            let outcome = measure(*attack, *proxy, &programs, arguments.plumbing, effort);
            let row = Row::of(proxy.name(), outcome);
            println!("{}: {row}", attack.name());
            rows.push(row);
        }
        report.add(attack.name(), attack.goal(), rows);
        if let Some(folder) = &folder {
            report.write(folder)?;
        }
    }
    println!("\n{report}");
    Ok(())
}

fn measure(
    attack: Attack,
    proxy: Proxy,
    programs: &Programs,
    plumbing: Plumbing,
    effort: &Effort,
) -> Result<Box<dyn Outcome>> {
    let world = World::new(plumbing)?;
    let config = match attack {
        Attack::Many => format!("portolan: {{maps: {{flows: {}}}}}\n", effort.flows),
        _ => String::new(),
    };
    let mut served = Served::start(&world, proxy, programs, &config)?;
    Ok(match attack {
        Attack::ShortClientCloses => {
            Box::new(short::run(&served, Closes::Client, effort.windows, WINDOW)?)
        }
        Attack::ShortServerCloses => {
            Box::new(short::run(&served, Closes::Server, effort.windows, WINDOW)?)
        }
        Attack::SynFromOutside => Box::new(syn::run(
            &mut served,
            From::Outside,
            effort.open,
            effort.flood,
        )?),
        Attack::SynFromPod => {
            Box::new(syn::run(&mut served, From::Pod, effort.open, effort.flood)?)
        }
        Attack::Udp => Box::new(udp::run(&mut served, effort.flood)?),
        Attack::Many => Box::new(many::run(
            &mut served,
            effort.many,
            PER_SECOND,
            effort.long,
        )?),
        Attack::Deaf => Box::new(deaf::run(&served, DEAF)?),
        Attack::Spoof => Box::new(spoof::run(&served, effort.spoof)?),
    })
}

impl Attack {
    const fn name(self) -> &'static str {
        match self {
            Self::ShortClientCloses => "short connections, clients close first",
            Self::ShortServerCloses => "short connections, the endpoint closes first",
            Self::SynFromOutside => "SYN flood from outside at a node port",
            Self::SynFromPod => "SYN flood from a pod at a cluster IP",
            Self::Udp => "flood of datagrams at a node port",
            Self::Many => "very many connections",
            Self::Deaf => "one of two endpoints is deaf",
            Self::Spoof => "a pod forges another's packets",
        }
    }

    const fn goal(self) -> &'static str {
        match self {
            Self::ShortClientCloses | Self::ShortServerCloses => {
                "no window below 0.9 of the first one's rate, none fails"
            }
            Self::SynFromOutside | Self::SynFromPod => {
                "no open connection is lost, 99 % of 100 new ones a second are made, p99 of connect() below 3 times the quiet one"
            }
            Self::Udp => "99 % of a pod's queries to the cluster IP are answered within a second",
            Self::Many => {
                "no open connection is lost, 99.9 % of the new ones are made, nothing is dropped"
            }
            Self::Deaf => "all are made within 8 s",
            Self::Spoof => "nothing is lost, all new ones are made, the forger receives nothing",
        }
    }

    /// Returns whether to attack this proxy. A deaf pod without a proxy shows nothing.
    fn fits(self, proxy: Proxy) -> bool {
        self != Self::Deaf || proxy != Proxy::Direct
    }
}
