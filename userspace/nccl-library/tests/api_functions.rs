//! The exported functions' arguments and the names of the API's enums, as they are declared here, against
//! what the debugging information of every library in the cache states.

use nccl_library::{
    elf::Image,
    nccl::{ApiFunction, Argument, NameTables},
    symbols::{integer_argument, nccl_request_with_api, resolve},
};
use test_support::libraries;

/// nccl.h's names of such an argument.
fn names(argument: Argument) -> &'static [&'static str] {
    match argument {
        Argument::SendBuffer => &["sendbuff", "localbuff"],
        Argument::RecvBuffer => &["recvbuff"],
        Argument::Count => &["count", "sendcount", "recvcount"],
        Argument::Datatype => &["datatype"],
        Argument::ReductionOp => &["op"],
        Argument::Root => &["root"],
        Argument::Peer => &["peer"],
        Argument::Comm => &["comm"],
        Argument::Stream => &["stream"],
        Argument::Other => &["peerWin", "peerWinOffset", "sigIdx", "ctx", "flags", "nDesc", "signalDescs"],
    }
}

#[test]
fn arguments_are_where_the_debugging_information_has_them() {
    let mut compared = 0;
    for (name, library) in libraries() {
        let resolution = resolve(&Image::open(&library).unwrap(), &nccl_request_with_api()).unwrap();
        for function in ApiFunction::all().filter(|function| function.communicates()) {
            for copy in resolution.functions(function.name()) {
                let whose = format!("{name} {}", function.name());
                // `...Config` has one more.
                let declared = copy.params.iter().filter(|param| param.name != "config").count();
                assert_eq!(declared, function.arguments().len(), "{whose}");
                for (number, (argument, param)) in function.arguments().iter().zip(&copy.params).enumerate() {
                    assert!(
                        names(*argument).contains(&param.name.as_str()),
                        "{whose}: {argument:?} is {}",
                        param.name
                    );
                    assert_eq!(integer_argument(resolution.machine, number), param.location, "{whose}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 100 || libraries().is_empty(), "{compared}");
    eprintln!("{compared} arguments compared");
}

/// Names that a version does not have yet are not known to it.
#[test]
fn names_are_those_of_every_library() {
    let declared = NameTables::default().or_as_declared();
    for (name, library) in libraries() {
        let resolution = resolve(&Image::open(&library).unwrap(), &nccl_request_with_api()).unwrap();
        let stated = NameTables::from_layouts(&resolution.layouts);
        let mut known = [0; 3];
        for number in 0..64 {
            for (of, (stated, declared)) in [
                (stated.datatype(number), declared.datatype(number)),
                (stated.reduction_op(number), declared.reduction_op(number)),
                (stated.result(number), declared.result(number)),
            ]
            .into_iter()
            .enumerate()
            {
                assert!(
                    stated.is_none() || stated == declared,
                    "{name}: {number} is {stated:?}, not {declared:?}"
                );
                known[of] += usize::from(stated.is_some());
            }
        }
        assert!(known[0] >= 10 && known[1] == 5 && known[2] >= 8, "{name}: {known:?}");
    }
}
