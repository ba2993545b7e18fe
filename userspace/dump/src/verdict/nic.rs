//! Judges communicators whose ops in flight go over a network adapter that has lost its link, and tells of
//! errors that adapters count meanwhile.

use std::collections::BTreeSet;

use super::{Case, Kind, MAX_SENTENCES, Verdict, named};
use crate::{NicReport, OpReport, RankReport};
use flow::text::joined;

/// Names ranks with an op that is not finished and goes over an adapter of which no port is up.
pub(super) fn link_down(case: &Case<'_>) -> Option<Verdict> {
    let stand = case.ranks_where(|rank| dead(rank).next().is_some());
    if stand.is_empty() {
        return None;
    }
    let mut evidence = vec![format!("ops are in flight, and nothing moved for {:.1} s", case.seconds)];
    for rank in stand.iter().take(MAX_SENTENCES).filter_map(|number| case.ranks.get(number)) {
        evidence.extend(dead(rank).map(|(op, nic)| {
            let ports = nic.down().map(|port| format!("port {} is {}", port.name(), port.state));
            format!("rank {} has {} over {}: {}", rank.rank, op.label(), nic.label(), joined(ports, ", "))
        }));
    }
    Some(case.stuck(Kind::LinkDown, stand, evidence))
}

/// Returns the first op in flight of each device of a rank that cannot carry it.
fn dead(rank: &RankReport) -> impl Iterator<Item = (&OpReport, &NicReport)> {
    let is_dead = |nic: &&NicReport| !nic.ports.is_empty() && nic.down().count() == nic.ports.len();
    rank.nics.iter().filter(is_dead).filter_map(|nic| {
        let mut ops = rank.proxy.ops.iter().filter(|op| op.begun && op.is_unfinished());
        Some((ops.find(|op| op.net_dev == Some(nic.dev))?, nic))
    })
}

/// Adds the errors that adapters counted while the communicator was read, and ports that are down.
pub(super) fn add(case: &Case<'_>, verdict: &mut Verdict) {
    let mut said = Vec::new();
    for (rank, nic) in case.ranks.values().flat_map(|rank| rank.nics.iter().map(move |nic| (*rank, nic))) {
        for port in &nic.ports {
            let grown = port.errors_grown.iter().map(|(name, count)| format!("{name} {count}"));
            let grown = joined(grown, ", ");
            let down = (!port.is_up() && verdict.kind != Some(Kind::LinkDown)).then_some(port.state.as_str());
            let what = match (down, grown.is_empty()) {
                (None, true) => continue,
                (Some(state), true) => format!("is {state}"),
                (None, false) => format!("counted errors meanwhile: {grown}"),
                (Some(state), false) => format!("is {state}, and counted errors meanwhile: {grown}"),
            };
            said.push((format!("port {} of {} {what}", port.name(), rank.host), rank.rank));
        }
    }
    // Ranks of one host share its adapters.
    said.sort();
    let ports = said.chunk_by(|(one, _), (other, _)| one == other).take(MAX_SENTENCES);
    verdict.evidence.extend(ports.filter_map(|same| {
        let (port, _) = same.first()?;
        let ranks: BTreeSet<u32> = same.iter().map(|(_, rank)| *rank).collect();
        Some(format!("{port} (connections of {} go over it)", named(&ranks)))
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{
        State,
        tests::made::{judge, op, rank},
    };
    use inspect::adapters::Port;
    use nccl_library::nccl::Direction;

    fn nic(states: &[&str]) -> NicReport {
        let port = |(number, state): (u32, &&str)| Port {
            adapter: format!("mlx5_{number}"),
            port: 1,
            state: (*state).to_owned(),
            ..Port::default()
        };
        let ports: Vec<Port> = (3..).zip(states).map(port).collect();
        let name = joined(ports.iter().map(|port| port.adapter.as_str()), "+");
        NicReport { dev: 3, net: Some("IB".to_owned()), name: Some(name), guid: None, ports }
    }

    /// A ring in which all wait for each other's data.
    fn ring(of_2: &NicReport) -> Vec<RankReport> {
        let ring = (0..4).map(|number| {
            let mut one = rank(number, 4, vec![op(Direction::Recv, (number + 3) % 4, 3)]);
            one.proxy.ops[0].net_dev = Some(3);
            one.host = format!("node{number}");
            one.nics = vec![if number == 2 { of_2.clone() } else { nic(&["ACTIVE"]) }];
            one
        });
        ring.collect()
    }

    #[test]
    fn a_rank_whose_op_goes_over_a_port_that_is_down_is_named() {
        let verdict = judge(&ring(&nic(&["DOWN"])), &[]);
        assert_eq!((verdict.state, verdict.kind), (State::Stuck, Some(Kind::LinkDown)));
        assert_eq!((verdict.culprits, verdict.victims), (vec![2], vec![0, 1, 3]));
        let told = "rank 2 has RECV from 1 (AllReduce, op 3, channel 0) over mlx5_3: port mlx5_3:1 is DOWN";
        assert!(verdict.evidence.iter().any(|sentence| sentence == told), "{:?}", verdict.evidence);
    }

    #[test]
    fn a_port_that_is_up_or_idle_or_one_of_two_is_not_to_blame() {
        for nic in [nic(&["ACTIVE"]), nic(&["ACTIVE", "DOWN"])] {
            assert_ne!(judge(&ring(&nic), &[]).kind, Some(Kind::LinkDown));
        }
        let mut other = ring(&nic(&["DOWN"]));
        other[2].proxy.ops[0].net_dev = Some(4);
        assert_ne!(judge(&other, &[]).kind, Some(Kind::LinkDown));
        let mut moves = ring(&nic(&["DOWN"]));
        moves[2].motion.steps_moved = true;
        assert_eq!(judge(&moves, &[]).state, State::Healthy);
    }

    #[test]
    fn errors_that_an_adapter_counts_are_told_once_for_all_its_ranks() {
        let mut ranks = ring(&nic(&["ACTIVE"]));
        for rank in &mut ranks[1..=2] {
            rank.host = "node1".to_owned();
            rank.nics[0].ports[0].errors_grown = [("local_ack_timeout_err".to_owned(), 12)].into();
        }
        let told = "port mlx5_3:1 of node1 counted errors meanwhile: local_ack_timeout_err 12 (connections of ranks \
                    1, 2 go over it)";
        let evidence = judge(&ranks, &[]).evidence;
        assert_eq!(evidence.iter().filter(|sentence| *sentence == told).count(), 1, "{evidence:?}");
    }
}
