use super::*;
use crate::decode::{ApiLineEvent, ReductionOp};

const fn at(ts_ns: u64) -> Origin {
    Origin { ts_ns, tgid: 1, tid: 2, lost: 0, stack: None }
}

fn function(name: &str) -> ApiFunction {
    ApiFunction::try_from(name.to_owned()).unwrap()
}

fn call(ts_ns: u64) -> ApiRecord {
    let event = ApiLineEvent {
        origin: at(ts_ns),
        comm: None,
        comm_pointer: 0,
        op_count: None,
        name: "AllReduce".into(),
        send_buffer: 0,
        recv_buffer: 0,
        count: 1,
        datatype: None,
        reduction_op: ReductionOp::Unknown,
        root: 0,
        stream: 0,
        stack_pointer: 0xf0,
        with_ops: false,
        by_arguments: false,
    };
    ApiRecord { comm: None, number: ts_ns, event, returned: Observed::Unknown, seq: Observed::Absent }
}

fn entry(name: &str, ts_ns: u64, stack_pointer: u64) -> ApiEntryEvent {
    ApiEntryEvent { origin: at(ts_ns), function: function(name), stack_pointer }
}

fn exit(name: &str, ts_ns: u64, stack_pointer: u64, result: &str) -> ApiReturnEvent {
    let is_error = result != "ncclSuccess";
    ApiReturnEvent {
        origin: at(ts_ns),
        function: function(name),
        result: result.into(),
        is_error,
        stack_pointer,
    }
}

/// Shortens the output: name, host time and result.
fn brief(output: &ApiOutput) -> (String, Option<u64>, Option<String>) {
    match output {
        ApiOutput::Call(record) => match &record.returned {
            Observed::Known(Returned { function, host_ns, result }) => {
                (function.name().to_owned(), Some(*host_ns), Some(result.to_string()))
            }
            _ => (record.event.name.to_string(), None, None),
        },
        ApiOutput::Other(call) => {
            (call.function.name().to_owned(), call.host_ns, call.result.as_ref().map(ToString::to_string))
        }
    }
}

fn begin(returns: &mut Returns, record: ApiRecord, out: &mut impl FnMut(ApiOutput)) {
    returns.call(&record, None, out);
    returns.joined(Box::new(record), out);
}

fn end(returns: &mut Returns, event: ApiReturnEvent, out: &mut impl FnMut(ApiOutput)) {
    returns.returned(event, &mut JoinedCalls::default(), out);
}

fn run(steps: impl FnOnce(&mut Returns, &mut dyn FnMut(ApiOutput))) -> (Vec<String>, u64, u64) {
    let (mut returns, mut out) = (Returns::default(), Vec::new());
    steps(&mut returns, &mut |output| out.push(output));
    returns.finish(&mut |output| out.push(output));
    let shown = |output: &ApiOutput| {
        let (name, host_ns, result) = brief(output);
        format!("{name} {} {}", host_ns.map_or("-".into(), |ns| ns.to_string()), result.unwrap_or("-".into()))
    };
    (out.iter().map(shown).collect(), returns.unreturned, returns.uncalled)
}

#[test]
fn calls_and_returns_of_a_group() {
    let (out, unreturned, uncalled) = run(|returns, mut out| {
        for ts in [10, 20] {
            begin(returns, call(ts), &mut out);
            end(returns, exit("ncclAllReduce", ts + 3, 0x108, "ncclSuccess"), &mut out);
        }
        returns.entry(entry("ncclGroupEnd", 30, 0x100), &mut out);
        end(returns, exit("ncclGroupEnd", 90, 0x108, "ncclInternalError"), &mut out);
    });
    let expected =
        ["ncclAllReduce 3 ncclSuccess", "ncclAllReduce 3 ncclSuccess", "ncclGroupEnd 60 ncclInternalError"];
    assert_eq!(out, expected);
    assert_eq!((unreturned, uncalled), (0, 0));
}

#[test]
fn functions_inside_each_other() {
    let (out, unreturned, _) = run(|returns, mut out| {
        returns.entry(entry("ncclCommInitAll", 1, 0x200), &mut out);
        returns.entry(entry("ncclGroupEnd", 2, 0x100), &mut out);
        end(returns, exit("ncclGroupEnd", 5, 0x108, "ncclSuccess"), &mut out);
        end(returns, exit("ncclCommInitAll", 9, 0x208, "ncclSuccess"), &mut out);
    });
    assert_eq!(out, ["ncclCommInitAll 8 ncclSuccess"], "the program did not call the other");
    assert_eq!(unreturned, 0);
    // ncclSend of older versions.
    let (out, unreturned, _) = run(|returns, mut out| {
        begin(returns, call(1), &mut out);
        returns.entry(entry("ncclGroupEnd", 2, 0xf0), &mut out);
        end(returns, exit("ncclGroupEnd", 3, 0xf8, "ncclSuccess"), &mut out);
        end(returns, exit("ncclSend", 4, 0x108, "ncclSuccess"), &mut out);
        returns.entry(entry("ncclGroupEnd", 5, 0x100), &mut out);
        end(returns, exit("ncclGroupEnd", 9, 0x108, "ncclSuccess"), &mut out);
    });
    assert_eq!(out, ["ncclSend 3 ncclSuccess", "ncclGroupEnd 4 ncclSuccess"]);
    assert_eq!(unreturned, 0);
}

#[test]
fn what_never_returns_is_told_and_spoils_nothing() {
    let (out, unreturned, uncalled) = run(|returns, mut out| {
        // An exception went through; the next entry is further up the stack.
        returns.entry(entry("ncclCommSplit", 1, 0x80), &mut out);
        returns.entry(entry("ncclGroupEnd", 2, 0x100), &mut out);
        // The return was lost, and the function is called again from the same place.
        returns.entry(entry("ncclGroupEnd", 4, 0x100), &mut out);
        end(returns, exit("ncclGroupEnd", 6, 0x108, "ncclSuccess"), &mut out);
        // The return of this call was lost, too.
        begin(returns, call(7), &mut out);
        begin(returns, call(8), &mut out);
        // The session ends inside of this call.
    });
    assert_eq!(
        out,
        [
            "ncclCommSplit - -",
            "ncclGroupEnd - -",
            "ncclGroupEnd 2 ncclSuccess",
            "AllReduce - -",
            "AllReduce - -"
        ]
    );
    assert_eq!((unreturned, uncalled), (4, 0));
}

#[test]
fn a_return_whose_call_was_before_the_session() {
    let (out, unreturned, uncalled) = run(|returns, mut out| {
        end(returns, exit("ncclAllReduce", 5, 0x108, "ncclSuccess"), &mut out);
        end(returns, exit("ncclGroupEnd", 6, 0x108, "ncclSystemError"), &mut out);
    });
    assert_eq!(out, ["ncclGroupEnd - ncclSystemError"], "an error is told all the same");
    assert_eq!((unreturned, uncalled), (0, 2));
}

#[test]
fn threads_do_not_mix_and_are_bounded() {
    let mut returns = Returns::default();
    let mut out = Vec::new();
    for tid in 0..MAX_THREADS + 10 {
        let mut record = call(1);
        record.event.origin.tid = u32::try_from(tid).unwrap();
        begin(&mut returns, record, &mut |output| out.push(output));
    }
    assert_eq!((out.len(), returns.unreturned, returns.threads.len()), (10, 10, MAX_THREADS));
}
