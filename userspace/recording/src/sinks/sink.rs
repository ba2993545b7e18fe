//! The interface of sinks for rows.

use std::{any::Any, fmt};

use flow::schema::{ApiCall, GpuRow, LaunchThreadRow, MessageRow, MessageSums, Op, OtherCallRow, StackRow};

/// Receiver of a session's rows. By default, rows are ignored.
pub trait Sink: Any + fmt::Debug + Send {
    /// Takes an op on a channel. Its messages follow.
    fn op(&mut self, _op: &Op) {}

    /// Tells whether the latest op's messages are wanted: rows that nobody wants are not made.
    fn wants_messages(&self, _op: &Op) -> bool {
        true
    }

    /// Takes some messages of the latest op, in the order of peers and steps.
    fn messages(&mut self, _op: &Op, _messages: &[MessageRow]) {}

    /// Tells whether the sums of the op's messages are wanted, where the messages are not.
    fn wants_message_sums(&self, _op: &Op) -> bool {
        false
    }

    /// Takes the messages of the latest op, added up by peer.
    fn message_sums(&mut self, _op: &Op, _sums: &[MessageSums]) {}

    /// Takes a call of the API that communicates.
    fn call(&mut self, _call: &ApiCall) {}

    /// Takes a call stack that ops and calls name; before them or after.
    fn stack(&mut self, _stack: &StackRow) {}

    /// Takes the activity of a GPU of the host, in the order of time.
    fn gpu(&mut self, _row: &GpuRow) {}

    /// Takes the processor time of a thread that launches, in the order of time.
    fn launch_thread(&mut self, _row: &LaunchThreadRow) {}

    /// Takes a call of another function of the API.
    fn other_call(&mut self, _row: &OtherCallRow) {}

    /// Writes what has gathered, so that a reader sees it.
    fn flush(&mut self) {}

    /// Completes what belongs to a process (as ncclflow numbers it): nothing more comes of it.
    fn close_process(&mut self, _pid: u32) {}

    /// Takes the errors since the last call; each failure once.
    fn take_errors(&mut self) -> Vec<String> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use flow::{
        made::rows::{message_rows, op_row},
        schema::{ApiCallRow, MessageRow, Observed, OpRow, Outcome, Pointer},
    };
    use serde::{Serialize, de::DeserializeOwned};

    fn read_again<T: Serialize + DeserializeOwned>(row: &T) -> T {
        serde_json::from_str(&serde_json::to_string(row).unwrap()).unwrap()
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        let plain = op_row();
        assert_eq!(read_again(&plain), plain);
        let mut measured = OpRow { measured: Some(Outcome::AsPlanned), ..plain };
        measured.peers[0].proxy_rank = Observed::Unknown;
        assert_eq!(read_again(&measured), measured);
        let mut message = message_rows().remove(0);
        assert_eq!(read_again(&message), message);
        message.t_end_ns = Observed::Known(7);
        message.set_waits(&[None, Some(2), None, None, Some(5), None, None]);
        assert_eq!(read_again(&message), message);
        let keys = serde_json::to_value(&message).unwrap();
        assert!(
            keys["wait_flush_ns"] == 5
                && keys["wait_network_ns"].is_null()
                && keys.get("t_sent_ns").is_none()
        );
        assert_eq!(MessageRow::COLUMNS.len(), 38);
        let call = r#"{"opCount":1,"rank":null,"function":"Send","count":3,"bytes":12,"datatype":"float32","redop":null,
            "redopHandle":null,"root":null,"peer":2,"sendbuff":"0x7f00","recvbuff":null,"stream":"0x0","comm":"0x1",
            "commHash":null,"nRanks":null,"call":null,"launched":null,"ts_ns":1,"pid":1,"tid":1,"host":"here"}"#;
        let call: ApiCallRow = serde_json::from_str(call).unwrap();
        assert_eq!((call.sendbuff, call.result.is_absent()), (Some(Pointer(0x7f00)), true));
        assert_eq!(read_again(&call), call);
    }
}
