// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a process with some agents reports, and what is known of all processes. Pure.
//!
//! A process writes `listed AGENT TIME` when an agent has every object, and `seen slice CHANGE
//! TIME` or `seen service CHANGE TIME` when all of its agents have a change of the marked
//! EndpointSlice or Service. It reads `restart FROM TO`: agents FROM to TO - 1 end and start again.
//! Agents are counted from 0 in each process, times are nanoseconds since 1970. An agent that is
//! started again still counts as having the changes it had. xtask/go/informers does the same in Go.

use std::{collections::BTreeMap, fmt, ops::Range};

/// The object that changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Subject {
    Slice,
    Service,
}

/// A change of the marked slice or service, by its number, which begins at 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Mark {
    pub subject: Subject,
    pub number: u16,
}

impl Subject {
    const ALL: [Self; 2] = [Self::Slice, Self::Service];

    const fn name(self) -> &'static str {
        match self {
            Self::Slice => "slice",
            Self::Service => "service",
        }
    }
    pub(super) const fn number(self, number: u16) -> Mark {
        Mark {
            subject: self,
            number,
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.subject.name(), self.number)
    }
}

/// A line that a process has written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line {
    Listed { agent: usize, time: u64 },
    Seen { mark: Mark, time: u64 },
}

impl Line {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let words: Vec<_> = text.split_whitespace().collect();
        match words[..] {
            ["listed", agent, time] => Some(Self::Listed {
                agent: agent.parse().ok()?,
                time: time.parse().ok()?,
            }),
            ["seen", subject, number, time] => {
                let mut subjects = Subject::ALL.into_iter();
                let subject = subjects.find(|one| one.name() == subject)?;
                Some(Self::Seen {
                    mark: subject.number(number.parse().ok()?),
                    time: time.parse().ok()?,
                })
            }
            _ => None,
        }
    }
}

/// Parses the command to start agents again.
pub fn parse_restart(text: &str) -> Option<Range<usize>> {
    let mut words = text.strip_prefix("restart ")?.split_whitespace();
    let range = words.next()?.parse().ok()?..words.next()?.parse().ok()?;
    words.next().is_none().then_some(range)
}

/// The changes that a process's agents have.
pub struct Marks {
    /// The last change of each agent, by subject.
    agents: Vec<[u16; Subject::ALL.len()]>,
    /// How many agents have each change that not all of them have.
    have: BTreeMap<Mark, usize>,
}

impl Marks {
    pub fn new(agents: usize) -> Self {
        Self {
            agents: vec![[0; Subject::ALL.len()]; agents],
            have: BTreeMap::new(),
        }
    }

    /// Notes that an agent has a change, and with it those before. Returns the changes that now all
    /// agents have.
    pub fn saw(&mut self, agent: usize, mark: Mark) -> Vec<Mark> {
        let mut complete = Vec::new();
        let agents = self.agents.len();
        let last = &mut self.agents[agent][mark.subject as usize];
        for number in *last + 1..=mark.number {
            let mark = mark.subject.number(number);
            let have = self.have.entry(mark).or_default();
            *have += 1;
            *last = number;
            if *have == agents {
                self.have.remove(&mark);
                complete.push(mark);
            }
        }
        complete
    }
}

/// What the processes have reported.
pub(super) struct Arrivals {
    processes: usize,
    /// When each agent had every object; None while it has not. Index: over all processes.
    listed: Vec<Option<u64>>,
    /// How many processes have each change, and when the last of these had it.
    seen: BTreeMap<Mark, (usize, u64)>,
}

impl Arrivals {
    pub(super) fn new(processes: usize, agents: usize) -> Self {
        Self {
            processes,
            listed: vec![None; agents],
            seen: BTreeMap::new(),
        }
    }

    /// Notes a line of the process whose first agent has the number `first` over all processes.
    pub(super) fn take(&mut self, first: usize, line: Line) {
        match line {
            Line::Listed { agent, time } => {
                if let Some(listed) = self.listed.get_mut(first + agent) {
                    *listed = Some(time);
                }
            }
            Line::Seen { mark, time } => {
                let (processes, last) = self.seen.entry(mark).or_default();
                *processes += 1;
                *last = (*last).max(time);
            }
        }
    }

    /// Forgets that agents had every object, because they are to start again.
    pub(super) fn forget(&mut self, agents: Range<usize>) {
        self.listed[agents].fill(None);
    }

    /// Returns when the last agent had every object; None if one has not.
    pub(super) fn all_listed(&self) -> Option<u64> {
        let times: Option<Vec<u64>> = self.listed.iter().copied().collect();
        times?.into_iter().max()
    }

    /// Returns how many agents have every object.
    pub(super) fn listed(&self) -> usize {
        self.listed.iter().flatten().count()
    }

    /// Returns when the last agent had a change; None if one has not.
    pub(super) fn all_saw(&self, mark: Mark) -> Option<u64> {
        let (processes, last) = self.seen.get(&mark)?;
        (*processes == self.processes).then_some(*last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn slice(number: u16) -> Mark {
        Subject::Slice.number(number)
    }

    #[test]
    fn lines_of_processes_are_read_and_others_ignored() {
        let listed = Line::Listed { agent: 3, time: 17 };
        assert_eq!(Line::parse("listed 3 17"), Some(listed));
        for mark in [slice(4), Subject::Service.number(5)] {
            let line = format!("seen {mark} 18\n");
            assert_eq!(Line::parse(&line), Some(Line::Seen { mark, time: 18 }));
        }
        for other in [
            "",
            "listed",
            "listed 3",
            "listed x 17",
            "seen 1 2",
            "seen pod 1 2",
        ] {
            assert_eq!(Line::parse(other), None, "{other}");
        }
    }

    #[test]
    fn the_restart_command_is_read() {
        assert_eq!(parse_restart("restart 2 5\n"), Some(2..5));
        for other in ["restart", "restart 2", "restart 2 5 6", "stop 2 5"] {
            assert_eq!(parse_restart(other), None, "{other}");
        }
    }

    #[test]
    fn a_change_is_complete_when_the_last_agent_has_it_or_a_later_one() {
        let mut marks = Marks::new(2);
        assert_eq!(marks.saw(0, slice(1)), []);
        assert_eq!(marks.saw(0, slice(2)), []);
        assert_eq!(marks.saw(0, slice(2)), [], "the same again");
        assert_eq!(marks.saw(1, slice(3)), [slice(1), slice(2)]);
        assert_eq!(marks.saw(1, slice(1)), [], "an old one");
        assert_eq!(marks.saw(0, slice(3)), [slice(3)]);
    }

    #[test]
    fn changes_of_slice_and_service_are_counted_apart() {
        let service = Subject::Service.number(1);
        let mut marks = Marks::new(2);
        assert_eq!(marks.saw(0, service), []);
        assert_eq!(marks.saw(1, slice(1)), []);
        assert_eq!(marks.saw(1, service), [service]);
    }

    #[test]
    fn all_agents_are_listed_once_the_last_one_of_every_process_is() {
        let mut arrivals = Arrivals::new(2, 3);
        for (first, agent, time) in [(0, 0, 5), (0, 1, 9)] {
            arrivals.take(first, Line::Listed { agent, time });
        }
        assert_eq!((arrivals.all_listed(), arrivals.listed()), (None, 2));
        arrivals.take(2, Line::Listed { agent: 0, time: 7 });
        assert_eq!(arrivals.all_listed(), Some(9));
        arrivals.forget(1..2);
        assert_eq!(arrivals.all_listed(), None);
        arrivals.take(0, Line::Listed { agent: 1, time: 11 });
        assert_eq!(arrivals.all_listed(), Some(11));
    }

    #[test]
    fn a_change_has_arrived_once_every_process_says_so() {
        let seen = |time| Line::Seen {
            mark: slice(1),
            time,
        };
        let mut arrivals = Arrivals::new(2, 2);
        arrivals.take(1, seen(8));
        assert_eq!(arrivals.all_saw(slice(1)), None);
        arrivals.take(0, seen(6));
        assert_eq!(arrivals.all_saw(slice(1)), Some(8));
        assert_eq!(arrivals.all_saw(slice(2)), None);
    }
}
