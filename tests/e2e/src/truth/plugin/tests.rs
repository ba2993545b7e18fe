use super::*;

const V4: &str = r#"{"kind":"context","api":4,"pid":10,"commHash":"0xabc","rank":0,"nRanks":2,"nNodes":2,"t":1}
{"kind":"coll","id":100,"group":99,"rank":0,"seqNumber":0,"func":"AllReduce","count":8,"datatype":"ncclFloat32","root":0,"algo":"RING","proto":"SIMPLE","nChannels":1,"nWarps":8,"t":2}
{"kind":"proxyOp","id":101,"parent":100,"parentPid":10,"rank":0,"channelId":0,"peer":1,"nSteps":2,"chunkSize":32,"isSend":true,"t":3}
{"kind":"proxyOp","id":102,"parent":100,"parentPid":10,"rank":0,"channelId":0,"peer":1,"nSteps":2,"chunkSize":32,"isSend":false,"t":4}
{"kind":"proxyStep","id":104,"op":101,"step":1,"t":6}
{"kind":"state","id":104,"state":8,"transSize":16,"t":6}
{"kind":"proxyStep","id":103,"op":101,"step":0,"t":5}
{"kind":"state","id":103,"state":9,"transSize":16,"t":6}
{"kind":"stop","id":103,"t":8}
{"kind":"state","id":104,"state":9,"transSize":12,"t":7}
{"kind":"stop","id":104,"t":9}
{"kind":"proxyStep","id":105,"op":102,"step":0,"t":5}
{"kind":"state","id":105,"state":11,"transSize":16,"t":7}
{"kind":"stop","id":101,"t":10}
{"kind":"stop","id":100,"t":11}
{"kind":"finalize","t":12}
"#;

fn file(text: &str) -> Result<File> {
    File::new(json_lines::parse(text).unwrap())
}

#[test]
fn lines_become_calls_ops_and_messages() {
    let truth = PluginTruth::join(vec![file(V4).unwrap()]).unwrap();
    let (member, rank) = truth.of(CommHash(0xabc)).next().unwrap();
    assert_eq!(member.rank, 0);
    assert!(rank.finalized);
    assert_eq!(rank.colls[0].stop, Some(11));
    let [send, recv] = &rank.ops[..] else { panic!("{:?}", rank.ops) };
    assert_eq!((send.direction, send.messages(2), send.stop), (Direction::Send, 2, Some(10)));
    assert_eq!(send.sizes(), Some(vec![16, 12]), "the size is that of the send, steps are in order");
    assert_eq!(send.bytes(), Some(28));
    assert_eq!((send.steps[0].start, send.steps[0].stop), (5, Some(8)));
    assert_eq!(recv.bytes(), Some(16));
    assert_eq!(send.progress(), Progress { posted: 1, received: 0, transmitted: 2, done: 2 });
    assert_eq!(recv.progress(), Progress { posted: 0, received: 1, transmitted: 0, done: 0 });
    assert_eq!((recv.steps[0].stop, recv.stop), (None, None), "open at the end");
    assert_eq!(send.call, Some(rank.colls[0].call));
}

#[test]
fn running_sums_of_old_versions_count_from_the_first_state() {
    let text = r#"{"kind":"context","api":1,"pid":10,"commHash":"0xabc","rank":0,"t":1}
{"kind":"proxyOp","id":1,"parent":7,"parentPid":10,"rank":0,"channelId":0,"peer":1,"nSteps":6,"chunkSize":32,"isSend":true,"t":3}
{"kind":"state","id":1,"state":0,"transSize":1000,"steps":2,"t":3}
{"kind":"state","id":1,"state":2,"transSize":1000,"steps":2,"t":4}
{"kind":"state","id":1,"state":3,"transSize":1016,"steps":2,"t":5}
{"kind":"state","id":1,"state":3,"transSize":1048,"steps":6,"t":6}
{"kind":"stop","id":1,"t":9}
"#;
    let file = file(text).unwrap();
    let op = &file.rank.ops[0];
    assert_eq!(op.bytes(), Some(48));
    assert_eq!(op.sizes(), None);
    assert_eq!((op.messages(2), op.messages(4)), (3, 2));
}

#[test]
fn ops_done_for_another_process_go_back_to_their_communicator() {
    let helper = r#"{"kind":"context","api":4,"pid":20,"commHash":"0x0","rank":-1,"foreign":true,"t":1}
{"kind":"proxyOp","id":500,"parent":100,"parentPid":10,"rank":0,"channelId":3,"peer":1,"nSteps":2,"chunkSize":32,"isSend":true,"t":3}
{"kind":"proxyOp","id":501,"parent":100,"parentPid":30,"rank":0,"channelId":3,"peer":1,"nSteps":2,"chunkSize":32,"isSend":true,"t":3}
"#;
    let truth = PluginTruth::join(vec![file(helper).unwrap(), file(V4).unwrap()]).unwrap();
    let rank = &truth.ranks[&Member { comm_hash: CommHash(0xabc), rank: 0 }];
    assert_eq!(rank.ops.iter().filter(|op| op.channel == 3).count(), 1);
    assert_eq!(truth.orphans.len(), 1, "the number 100 of another process is another call");
}

#[test]
fn files_that_do_not_hold_together_are_errors() {
    assert!(file("").is_err());
    assert!(file(&V4.split_inclusive('\n').skip(1).collect::<String>()).is_err());
    assert!(PluginTruth::join(vec![file(V4).unwrap(), file(V4).unwrap()]).is_err());
    let lost_op: String = V4.split_inclusive('\n').filter(|line| !line.contains("proxyOp")).collect();
    assert!(file(&lost_op).is_err(), "steps without their op");
    let lost_step: String = V4.split_inclusive('\n').filter(|line| !line.contains("proxyStep")).collect();
    assert!(file(&lost_step).is_err(), "states without their step");
}
