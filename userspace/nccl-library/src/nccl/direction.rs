super::named::named! {
    /// Which way data goes.
    Direction {
        Recv = "RECV",
        Send = "SEND",
    }
}
