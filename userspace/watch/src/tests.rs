//! Jobs that are made up, over time.

mod crawl;
mod pods;
mod ports;
mod rests;
mod set_up;
mod slow;

use std::{sync::Arc, time::Duration};

use dump::{
    Kind, State,
    watched::{Counts, Growth},
};
use flow::schema::GpuRow;

use crate::{
    Book, CommKey, GpuState, HostReading, Look, ProcessInfo, ProcessKey, ProcessReading, RankCounts,
    RankInfo, RankReading, Settings, Steps,
    event::{AlertKind, Culprit, EventBody, EventType},
    phase::Phase,
};

/// A rank of a made-up job: its process lives, and has launched so many collectives.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts that a test sets one by one")]
struct Made {
    is_live: bool,
    launched: u64,
    in_flight: bool,
    steps: u64,
    failure: Option<&'static str>,
    is_ending: bool,
    is_coming: bool,
    /// It has no such communicator yet.
    is_absent: bool,
    has_left: bool,
    is_unread: bool,
}

/// A made-up job of ranks with one communicator, and the clock.
struct World {
    book: Book,
    seconds: u64,
    ranks: Vec<Made>,
    has_proxy: bool,
    busy: Option<u32>,
    xids: Vec<u64>,
    /// Ports of adapters, and the size of the communicator, if ranks are on other hosts.
    ports: Option<Vec<inspect::adapters::Port>>,
    n_ranks: Option<u32>,
    /// Percents of the time in which each rank's GPU has a kernel, and in which its multiprocessors work.
    activity: Vec<(f64, f64)>,
    /// Seconds of ten for which each rank's first thread waits for a processor.
    waited: Vec<f64>,
    /// Batches of sends of each rank.
    sends: Option<u64>,
    /// What a dump would say; `None`: it does not come back.
    dump: Option<Result<Look, String>>,
    /// What it would say of these processes alone.
    alone: Option<(Vec<u32>, Look)>,
    /// Pod of each rank.
    pods: Vec<&'static str>,
    looks: u32,
    looked_at: Vec<u32>,
    events: Vec<(u64, EventBody)>,
}

const HASH: &str = "0x1";

impl World {
    fn new(ranks: usize) -> Self {
        let made = Made {
            is_live: true,
            launched: 0,
            in_flight: false,
            steps: 0,
            failure: None,
            is_ending: false,
            is_coming: false,
            is_absent: false,
            has_left: false,
            is_unread: false,
        };
        Self {
            book: Book::new(Settings::default()),
            seconds: 0,
            ranks: vec![made; ranks],
            has_proxy: true,
            busy: None,
            xids: Vec::new(),
            ports: None,
            n_ranks: None,
            activity: Vec::new(),
            waited: Vec::new(),
            sends: None,
            dump: Some(Ok(Look { state: State::Healthy, ..Look::default() })),
            alone: None,
            pods: Vec::new(),
            looks: 0,
            looked_at: Vec::new(),
            events: Vec::new(),
        }
    }

    fn readings(&self) -> Vec<ProcessReading> {
        let n_ranks = self.n_ranks.unwrap_or(u32::try_from(self.ranks.len()).unwrap());
        let reading = |(rank, made): (u32, &Made)| {
            let key = ProcessKey { pid: 100 + rank, started: 1 };
            let info = RankInfo {
                comm: Arc::new(CommKey { hash: HASH.into(), n_ranks, ..CommKey::default() }),
                rank,
                gpu: Some(rank),
                bus_id: Some(format!("0000:0{rank}:00.0")),
                has_proxy: Some(self.has_proxy),
                functions: vec!["AllReduce".to_owned()],
                ..RankInfo::default()
            };
            let counts = Counts {
                by_function: vec![made.launched],
                p2p_op_count: self.sends,
                has_ops_in_flight: made.in_flight,
                is_ending: made.is_ending,
                is_set_up: !made.is_coming,
                ..Counts::default()
            };
            let state = match (made.has_left, made.is_unread) {
                (true, _) => RankCounts::Ended,
                (_, true) => RankCounts::Unread,
                _ => RankCounts::Read(counts),
            };
            let rank = RankReading {
                info: Arc::new(info),
                state,
                steps: made.in_flight.then_some(Steps::At(made.steps)),
                failure: made.failure.map(str::to_owned),
            };
            let ranks = if made.is_absent { Vec::new() } else { vec![rank] };
            let pod = self.pods.get(key.pid as usize - 100).map(|pod| (*pod).to_owned());
            let (name, user) = ("train".into(), "ann".into());
            let info = ProcessInfo { key, name, user, pod, ..ProcessInfo::default() };
            ProcessReading {
                info: Arc::new(info),
                is_live: made.is_live,
                ranks,
                processor: self.processor(key.pid),
            }
        };
        (0..).zip(&self.ranks).map(reading).collect()
    }

    /// Processor time of a rank's process, which is looked at every ten seconds.
    fn processor(&self, pid: u32) -> Option<Growth> {
        let waited = self.waited.get(usize::try_from(pid - 100).unwrap())?;
        self.seconds.is_multiple_of(10).then(|| Growth {
            period: Duration::from_secs(10),
            launching: Some([Duration::from_secs(3), Duration::from_secs_f64(*waited)]),
            ..Growth::default()
        })
    }

    /// What the driver tells of a rank's GPU in this second, with some noise.
    fn rows(&self, rank: usize) -> Vec<Arc<GpuRow>> {
        let Some((graphics, busy)) = self.activity.get(rank) else { return Vec::new() };
        let noise = (self.seconds * 7919 + rank as u64 * 13) % 100;
        let noise = f64::from(u32::try_from(noise).unwrap()) / 100.0;
        vec![Arc::new(GpuRow {
            ts_ns: self.seconds * 1_000_000_000,
            graphics_active_percent: Some(graphics - noise),
            sm_active_percent: Some(busy + noise),
            tensor_active_percent: Some((busy + noise) / 2.0),
            ..GpuRow::default()
        })]
    }

    /// Takes a reading a second, and has dumps come back a little more than a second after they are asked for.
    fn pass(&mut self, seconds: u64, mut each: impl FnMut(&mut Vec<Made>, u64)) {
        for _ in 0..seconds {
            self.seconds += 1;
            each(&mut self.ranks, self.seconds);
            let gpu = |rank: usize| GpuState {
                bus_id: format!("0000:0{rank}:00.0"),
                busy_percent: self.busy,
                xids: if rank == 0 { self.xids.clone() } else { Vec::new() },
                rows: self.rows(rank),
            };
            let gpus: Vec<GpuState> = (0..self.ranks.len()).map(gpu).collect();
            let now = Duration::from_secs(self.seconds);
            let readings = self.readings();
            let host = HostReading { gpus, ports: self.ports.clone() };
            let news = self.book.take(&readings, &host, now);
            self.events.extend(news.events.into_iter().map(|event| (self.seconds, event)));
            for look in news.looks {
                self.looks += 1;
                self.looked_at.clone_from(&look.pids);
                let alone = self.alone.as_ref().filter(|(pids, _)| *pids == look.pids);
                if let Some(dump) = alone.map(|(_, look)| Ok(look.clone())).or_else(|| self.dump.clone()) {
                    let later = now + Duration::from_millis(1100);
                    let events = self.book.looked(look.job, look.of.as_deref(), dump, later);
                    self.events.extend(events.into_iter().map(|event| (self.seconds + 1, event)));
                }
            }
        }
    }

    /// All ranks launch a collective each second.
    fn work(&mut self, seconds: u64) {
        self.pass(seconds, |ranks, _| ranks.iter_mut().for_each(|rank| rank.launched += 1));
    }

    fn stand(&mut self, seconds: u64) {
        self.pass(seconds, |_, _| {});
    }

    /// Rank 1 does not come; the others wait.
    fn hang(&mut self) {
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            rank.launched += u64::from(number != 1);
            rank.in_flight = number != 1;
        }
        self.dump = Some(Ok(stuck(Kind::NotJoined, None)));
    }

    fn told(&self) -> Vec<(u64, EventType, AlertKind)> {
        self.events.iter().map(|(at, event)| (*at, event.event, event.kind.unwrap())).collect()
    }
}

fn stuck(kind: Kind, phase: Option<Phase>) -> Look {
    let culprit = Culprit { rank: 1, pid: Some(101), phase, ..Culprit::default() };
    Look {
        state: State::Stuck,
        kind: Some(kind),
        sentence: "waits for rank 1".into(),
        root: Some((HASH.into(), 4)),
        standing: vec![(HASH.into(), 4)],
        culprits: vec![culprit],
        waiting: vec![0, 2, 3],
        ..Look::default()
    }
}

use AlertKind::{Error, Gone, Hang, Slower, Waiting};
use EventType::{Begin, End};

#[test]
fn a_hang_begins_once_with_its_culprit_and_ends_once_when_it_is_mended() {
    let mut world = World::new(4);
    world.work(100);
    world.hang();
    world.stand(300);
    let [(at, Begin, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!((110..=113).contains(&at), "{at}");
    let event = &world.events[0].1;
    assert_eq!((event.culprits[0].rank, event.culprits[0].pid), (1, Some(101)));
    assert_eq!((event.waiting.as_slice(), event.verdict), (&[0, 2, 3][..], Some(Kind::NotJoined)));
    assert_eq!(world.looks, 1, "it is settled");
    world.ranks[1].launched += 1;
    world.ranks.iter_mut().for_each(|rank| rank.in_flight = false);
    world.work(100);
    let [_, (at, End, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!((403..=405).contains(&at), "{at}");
    assert_eq!(world.events[0].1.alert, world.events[1].1.alert);
}

/// As of a communicator whose other ranks are on other hosts.
#[test]
fn what_is_not_known_of_another_communicator_is_no_hang_of_a_healthy_one() {
    for (healthy, alerts) in [(vec![(HASH.to_owned(), 4)], 0), (Vec::new(), 1)] {
        let mut world = World::new(4);
        world.work(100);
        world.hang();
        world.dump = Some(Ok(Look { state: State::Unknown, healthy, ..Look::default() }));
        world.stand(300);
        assert_eq!(world.told().len(), alerts, "{:?}", world.told());
    }
}

#[test]
fn a_job_that_steps_once_and_hangs_on_is_the_same_hang() {
    let mut world = World::new(4);
    world.work(100);
    world.hang();
    world.stand(60);
    for _ in 0..5 {
        world.pass(1, |ranks, _| ranks[0].steps += 1);
        world.stand(40);
    }
    assert_eq!(world.told().len(), 1, "{:?}", world.told());
}

#[test]
fn an_iteration_of_a_minute_may_stand_for_five() {
    let mut world = World::new(4);
    let iterate = |ranks: &mut Vec<Made>, second: u64| {
        let moves = second % 60 < 5;
        for (number, rank) in ranks.iter_mut().enumerate() {
            rank.launched += u64::from(moves);
            // Rank 1 computes longer.
            rank.in_flight = !moves && number != 1;
        }
    };
    world.pass(600, iterate);
    // Until the rhythm is known, it is looked at, and a dump says that all is well.
    let looks = world.looks;
    world.pass(1200, iterate);
    assert_eq!((world.told(), world.looks), (vec![], looks));
    world.hang();
    world.stand(400);
    let [(at, Begin, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!((2050..=2130).contains(&at), "{at}");
}

#[test]
fn a_rank_whose_process_ends_is_gone_and_the_job_s_end_ends_it() {
    let mut world = World::new(4);
    world.work(100);
    world.hang();
    let mut look = stuck(Kind::Gone, None);
    look.culprits[0].pid = None; // The dump finds no process any more.
    world.dump = Some(Ok(look));
    world.ranks[1].is_live = false;
    world.stand(30);
    let [(at, Begin, Gone)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!((103..=106).contains(&at), "{at}");
    assert_eq!(world.events[0].1.culprits[0].pid, Some(101));
    world.ranks.iter_mut().for_each(|rank| rank.is_live = false);
    world.stand(5);
    let [_, (_, End, Gone)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!(world.events[1].1.sentence.contains("the job has ended"));
}

#[test]
fn a_job_that_ends_rank_by_rank_is_no_alert() {
    let mut world = World::new(4);
    world.work(100);
    for rank in 0..4 {
        world.ranks[rank].is_live = false;
        world.stand(20);
    }
    assert_eq!(world.told(), []);
    // The program destroys its communicators, some ranks later than others.
    let mut world = World::new(4);
    world.work(100);
    world.ranks.iter_mut().for_each(|rank| rank.is_ending = true);
    world.ranks[2].has_left = true;
    world.stand(60);
    assert_eq!((world.told(), world.looks), (vec![], 0));
}

#[test]
fn a_checkpoint_is_waiting_until_the_limit() {
    let mut world = World::new(4);
    world.work(100);
    world.hang();
    world.dump = Some(Ok(stuck(Kind::NotJoined, Some(Phase::Checkpoint))));
    world.stand(500);
    let [(_, Begin, Waiting)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!(world.events[0].1.sentence.ends_with("Rank 1 saves or loads a checkpoint."));
    world.stand(120);
    let [_, (_, End, Waiting), (at, Begin, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!((640..=680).contains(&at), "nine minutes after second 100: {at}");
    // One that ends in time is no alert.
    let mut world = World::new(4);
    world.work(100);
    world.hang();
    world.dump = Some(Ok(Look { state: State::Waiting, ..stuck(Kind::NotJoined, None) }));
    world.stand(200);
    world.ranks[1].launched += 1;
    world.work(60);
    let [(_, Begin, Waiting), (_, End, Waiting)] = world.told()[..] else { panic!("{:?}", world.told()) };
}

#[test]
fn without_dumps_counters_alone_tell_the_second_time() {
    for dump in [None, Some(Err("no memory".to_owned())), Some(Ok(Look::default()))] {
        let mut world = World::new(4);
        world.work(100);
        world.hang();
        world.dump = dump;
        world.stand(400);
        let [(_, Begin, Hang)] = world.told()[..] else { panic!("{:?}", world.told()) };
        let event = &world.events[0].1;
        assert_eq!((event.culprits[0].rank, event.verdict), (1, None));
        assert!(event.sentence.contains("By NCCL's counters alone"), "{}", event.sentence);
    }
}

#[test]
fn at_most_one_alert_a_minute_begins() {
    let mut world = World::new(4);
    for second in 0..300 {
        world.ranks[2].failure = (second % 10 < 5).then_some("ncclSystemError");
        world.work(1);
    }
    let of = |wanted: EventType| -> Vec<u64> {
        world.told().into_iter().filter(|(_, event, _)| *event == wanted).map(|(at, ..)| at).collect()
    };
    let begins = of(Begin);
    assert!(begins.len() == 5 && begins.windows(2).all(|pair| pair[1] - pair[0] >= 60), "{begins:?}");
    assert_eq!(of(End).len(), begins.len());
}

#[test]
fn failures_and_errors_of_gpus_begin_and_end_once() {
    let mut world = World::new(4);
    world.work(100);
    world.ranks[2].failure = Some("ncclSystemError");
    world.work(100);
    world.ranks[2].failure = None;
    world.work(100);
    let [(_, Begin, Error), (_, End, Error)] = world.told()[..] else { panic!("{:?}", world.told()) };
    let event = &world.events[0].1;
    assert!(event.sentence.contains("ncclSystemError on rank 2 (process 102)"), "{}", event.sentence);
    world.xids = vec![79];
    world.work(2);
    world.xids.clear();
    world.work(100);
    let [_, _, (_, Begin, Error), (_, End, Error)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!(world.events[2].1.sentence.contains("Xid 79"));
}

#[test]
fn a_failure_of_ranks_whose_peer_has_died_is_no_other_alert_and_blames_none_of_them() {
    let mut world = World::new(4);
    world.work(100);
    world.hang();
    world.dump = Some(Ok(stuck(Kind::Gone, None)));
    world.ranks[2].failure = Some("ncclRemoteError");
    // Its process takes a second to end.
    world.stand(1);
    world.ranks[1].is_live = false;
    world.stand(60);
    let [(_, Begin, Gone)] = world.told()[..] else { panic!("{:?}", world.told()) };
    // Of a peer on another host.
    let mut world = World::new(4);
    world.work(100);
    world.ranks[2].failure = Some("ncclRemoteError");
    world.work(10);
    let [(_, Begin, Error)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert_eq!(world.events[0].1.culprits, []);
}

#[test]
fn a_job_that_gets_slower_is_told_once() {
    let mut world = World::new(4);
    world.pass(1000, |ranks, _| ranks.iter_mut().for_each(|rank| rank.launched += 20));
    world.pass(600, |ranks, _| ranks.iter_mut().for_each(|rank| rank.launched += 10));
    world.pass(600, |ranks, _| ranks.iter_mut().for_each(|rank| rank.launched += 20));
    let [(_, Begin, Slower), (_, End, Slower)] = world.told()[..] else { panic!("{:?}", world.told()) };
    assert!(world.events[0].1.sentence.contains("2.0 times as long"), "{}", world.events[0].1.sentence);
}

#[test]
fn two_jobs_are_two_and_keep_their_numbers() {
    let comm = |hash: &str| Arc::new(CommKey { hash: hash.into(), n_ranks: 2, ..CommKey::default() });
    let process = |pid: u32, comms: &[&str]| {
        let ranks = comms.iter().map(|hash| RankReading {
            info: Arc::new(RankInfo { comm: comm(hash), rank: pid % 2, ..RankInfo::default() }),
            state: RankCounts::Read(Counts::default()),
            steps: None,
            failure: None,
        });
        let info = ProcessInfo { key: ProcessKey { pid, started: 1 }, ..ProcessInfo::default() };
        ProcessReading { info: Arc::new(info), is_live: true, ranks: ranks.collect(), processor: None }
    };
    let mut book = Book::default();
    let jobs = |book: &Book| -> Vec<(u64, Vec<u32>)> {
        book.view().map(|view| (view.job.number, view.job.pids)).collect()
    };
    let at = Duration::from_secs;
    book.take(
        &[process(2, &["0xa"]), process(3, &["0xa"]), process(5, &["0xb"])],
        &HostReading::default(),
        at(1),
    );
    assert_eq!(jobs(&book), [(1, vec![2, 3]), (2, vec![5])]);
    let all = [process(2, &["0xa", "0xc"]), process(3, &["0xa"]), process(5, &["0xb"]), process(4, &["0xc"])];
    book.take(&all, &HostReading::default(), at(2));
    assert_eq!(jobs(&book), [(1, vec![2, 3, 4]), (2, vec![5])]);
    let mut all = all;
    all[2].is_live = false;
    book.take(&all, &HostReading::default(), at(3));
    assert_eq!(jobs(&book), [(1, vec![2, 3, 4])]);
}
