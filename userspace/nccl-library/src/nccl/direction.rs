super::named::named! {
    /// Direction of data.
    Direction {
        Recv = "RECV",
        Send = "SEND",
    }
}
