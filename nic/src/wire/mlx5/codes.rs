//! Operation, completion and error codes. A code that is not known here survives a round trip.

use crate::wire::codes;

codes! {
    /// What a work request asks for (`MLX5_OPCODE_*`).
    Opcode {
        /// Nothing; may write a completion.
        Nop = 0x00, "NOP";
        /// Send, and invalidate a key of the responder.
        SendInvalidate = 0x01, "SEND_INVAL";
        /// Write to remote memory.
        Write = 0x08, "RDMA_WRITE";
        /// Write to remote memory, then hand 32 bits to the responder's completion queue.
        WriteImmediate = 0x09, "RDMA_WRITE_IMM";
        /// Send into a posted receive.
        Send = 0x0a, "SEND";
        /// Send into a posted receive, with 32 bits for its completion.
        SendImmediate = 0x0b, "SEND_IMM";
        /// Read remote memory.
        Read = 0x10, "RDMA_READ";
        /// Compare and swap 8 remote bytes.
        CompareSwap = 0x11, "ATOMIC_CS";
        /// Fetch and add 8 remote bytes.
        FetchAdd = 0x12, "ATOMIC_FA";
        /// Compare and swap under a mask.
        MaskedCompareSwap = 0x14, "ATOMIC_MASKED_CS";
        /// Fetch and add under a mask.
        MaskedFetchAdd = 0x15, "ATOMIC_MASKED_FA";
        /// Read local memory and drop it: flushes earlier writes on their way. Not in the public header.
        Dump = 0x23, "DUMP";
        /// Change a memory key.
        Umr = 0x25, "UMR";
    }
}

codes! {
    /// What a completion queue entry is (upper half of `op_own`, `MLX5_CQE_*`).
    CqeOpcode {
        /// A request of the send queue succeeded.
        Request = 0, "REQ";
        /// A remote WRITE with immediate arrived.
        ResponderWriteImmediate = 1, "RESP_WR_IMM";
        /// A SEND arrived.
        ResponderSend = 2, "RESP_SEND";
        /// A SEND with immediate arrived.
        ResponderSendImmediate = 3, "RESP_SEND_IMM";
        /// A SEND with invalidate arrived.
        ResponderSendInvalidate = 4, "RESP_SEND_INV";
        /// The queue was resized here.
        Resize = 5, "RESIZE_CQ";
        /// A request of the send queue failed.
        RequestError = 13, "REQ_ERR";
        /// A receive failed.
        ResponderError = 14, "RESP_ERR";
        /// Nothing was written here yet.
        Invalid = 15, "INVALID";
    }
}

codes! {
    /// Why a request failed (`MLX5_CQE_SYNDROME_*`).
    Syndrome {
        /// The lengths of the request and its scatter list do not fit together.
        LocalLength = 0x01, "local length error";
        /// The request is malformed or not supported.
        LocalQueuePairOperation = 0x02, "local queue pair operation error";
        /// A local key, address or access right does not hold.
        LocalProtection = 0x04, "local protection error";
        /// An earlier request of the queue pair failed; this one was not tried.
        Flushed = 0x05, "work request flushed";
        /// A memory window could not be bound.
        WindowBind = 0x06, "memory window bind error";
        /// The response made no sense.
        BadResponse = 0x10, "bad response";
        /// The responder could not reach its own memory.
        LocalAccess = 0x11, "local access error";
        /// The responder refused the request itself (such as an atomic on a misaligned address).
        RemoteInvalidRequest = 0x12, "remote invalid request";
        /// A remote key, address or access right does not hold.
        RemoteAccess = 0x13, "remote access error";
        /// The responder failed to carry the request out.
        RemoteOperation = 0x14, "remote operation error";
        /// The responder did not answer.
        TransportRetryExceeded = 0x15, "transport retries exceeded";
        /// The responder had no receive posted.
        ReceiverNotReady = 0x16, "receiver-not-ready retries exceeded";
        /// The responder gave the operation up.
        RemoteAborted = 0x22, "remote aborted";
    }
}
