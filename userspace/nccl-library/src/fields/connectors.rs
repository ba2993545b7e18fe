//! Connections: `ncclConnector` (src/include/device.h) and its transport (src/include/transport.h).

use super::field_ref::fields;

fields! {
    /// `ncclConnector`, with its `ncclProxyConnector` (src/include/proxy.h).
    connector = "ncclConnector", lost "the transport to a peer, and whether it has a proxy" {
        CONNECTED = "connected";
        /// Pointer into the transport: see [`transport`].
        TRANSPORT_COMM = "transportComm";
        /// Pointer to the `ncclProxyConnection`, in the process whose proxy serves the connection.
        PROXY_CONNECTION = "proxyConn.connection";
        /// Pointer that is not 0 if the connection has a proxy.
        PROXY_PROGRESS = "proxyConn.proxyProgress" since "2.19";
        /// 1 if the proxy is a thread of this process.
        PROXY_SAME_PROCESS = "proxyConn.sameProcess" since "2.18";
        /// Rank of the proxy in the communicator whose resources are shared.
        PROXY_TOP_RANK = "proxyConn.tpRank" since "2.18";
        /// Rank of the proxy in the communicator.
        PROXY_RANK = "proxyConn.rank" except "2.18" to "2.22";
    }

    /// `ncclTransport`: `{ char name[8]; …; ncclTransportComm send; ncclTransportComm recv; }`.
    transport = "ncclTransport", lost "the name of a transport" {
        NAME = "name";
        SEND = "send";
        RECV = "recv";
    }

    transport_comm = "ncclTransportComm", lost "the name of a transport" {
        /// Pointer that is not 0 if connections have a proxy.
        PROXY_PROGRESS = "proxyProgress";
    }
}
