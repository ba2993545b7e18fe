// The shape of NCCL's own functions and structs, in small: what the resolver looks for.
typedef unsigned long size_t;
typedef enum { ncclPatternRing = 0, ncclPatternTreeUp = 4, ncclPatternSend = 13, ncclPatternRecv = 14 } ncclPattern_t;
struct ncclRing { int prev, next; int* userRanks; int index; };
struct ncclTree { int depth, up, down[3]; };
struct ncclTransportComm { int (*setup)(); int (*proxyProgress)(); };
struct ncclTransport { char name[8]; int (*canConnect)(); struct ncclTransportComm send, recv; };
struct ncclProxyConnector { int tpRank; bool sameProcess; void* connection; int (*proxyProgress)(); };
struct ncclConnector { int connected; ncclProxyConnector proxyConn; struct ncclTransportComm* transportComm; };
struct ncclChannelPeer { ncclConnector send[2], recv[2]; };
struct ncclChannel { ncclChannelPeer** peers; ncclRing ring; ncclTree tree; int id; };
struct Base { long counter; };
struct ncclTaskColl { struct ncclTaskColl* next; size_t count; int datatype, func; };
struct ncclTaskP2p { struct ncclTaskP2p* next; size_t bytes; };
struct ncclProxyOp {
  void* connection; long nbytes; size_t opCount; int root; unsigned nsteps;
  unsigned char sliceSteps, channelId, pattern : 4, protocol : 4;
  union { ncclTaskColl* coll; ncclTaskP2p* p2p; } task;
  struct { int slices; union { long wide; short narrow[4]; }; } specifics;
};
struct ncclComm : Base {
  unsigned long startMagic; ncclChannel channels[4]; unsigned long commHash; int rank, nRanks; volatile int matrix[2][3];
  const char* name; unsigned long seqNumber[8]; unsigned long endMagic;
};
struct ncclInfo { int coll; const char* opName; const void* sendbuff; void* recvbuff; size_t count; int datatype, op, root; ncclComm* comm; };
extern "C" void report(const char* function, int line);
extern "C" __attribute__((cold)) void fail(const char* function, int line);
volatile long sink;

__attribute__((noinline)) static int SaveProxy(
    ncclComm* comm, ncclChannel* channel, int type, int peer, ncclProxyOp* op, int connIndex, bool* justInquire) {
  if (peer < 0) return 0;
  sink += comm->counter + channel->id + type + (long)channel->peers[peer] + connIndex;
  if (op->pattern == ncclPatternRecv) { report(__func__, 1); return 1; }
  if (justInquire) *justInquire = true;
  return 0;
}
__attribute__((noinline)) int ncclProxySaveOp(ncclComm* comm, ncclProxyOp* op, bool* justInquire) {
  ncclChannel* channel = &comm->channels[op->channelId];
  if (op->pattern == ncclPatternRing) {
    if (SaveProxy(comm, channel, 0, channel->ring.prev, op, 0, justInquire)) { report(__func__, 2); return 1; }
    return SaveProxy(comm, channel, 1, channel->ring.next, op, 1, justInquire);
  }
  report(__func__, 3);
  return comm->matrix[1][2];
}
__attribute__((noinline)) int ncclEnqueueCheck(ncclInfo* info) {
  if (info->comm->startMagic != info->comm->endMagic) { fail(__func__, 4); return 4; }
  sink += info->coll + info->comm->nRanks;
  return 0;
}
// The profiler's hooks hold no name: they are told by their calls.
struct ncclProxyArgs { int nsubs, done; };
struct ncclProfiler_t { const char* name; int (*init)(); int (*startEvent)(int); int (*stopEvent)(int); int (*recordEventState)(int, int); };
ncclProfiler_t* ncclProfiler;
#define HOOK __attribute__((noinline)) int
HOOK ncclProfilerRecordProxyStepEventState(int s, ncclProxyArgs* args, int stepId, int eState) {
  return ncclProfiler ? ncclProfiler->recordEventState(stepId + s * args->nsubs, eState) : 0;
}
HOOK ncclProfilerStopProxyStepEvent(int s, ncclProxyArgs* args, int stepId) {
  return ncclProfiler ? ncclProfiler->stopEvent(stepId + s * args->nsubs) : 0;
}
static int sendProxyProgress(ncclProxyArgs* args) {
  if (args->nsubs == 0) { report(__func__, 5); return 1; }
  for (int s = 0; s < args->nsubs; s++) {
    ncclProfilerRecordProxyStepEventState(s, args, args->done, 8);
    if (sink & 1) ncclProfilerRecordProxyStepEventState(s, args, args->done, 9);
    if (sink & 2) ncclProfilerStopProxyStepEvent(s, args, args->done++);
  }
  return 0;
}
static int recvProxyProgress(ncclProxyArgs* args) {
  if (args->nsubs == 0) { report(__func__, 6); return 1; }
  for (int s = 0; s < args->nsubs; s++) {
    ncclProfilerRecordProxyStepEventState(s, args, args->done, 10);
    if (sink & 1) ncclProfilerRecordProxyStepEventState(s, args, args->done, 11);
    if (sink & 2) ncclProfilerRecordProxyStepEventState(s, args, args->done, 12);
    if (sink & 4) ncclProfilerStopProxyStepEvent(s, args, args->done++);
  }
  return 0;
}
int (*netTransport[])(ncclProxyArgs*) = { sendProxyProgress, recvProxyProgress };
#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED int ncclAllReduce(ncclComm* comm, ncclProxyOp* op, bool* needed) {
  ncclInfo info = { 4, "AllReduce", nullptr, nullptr, 1, 7, 0, 0, comm };
  return ncclEnqueueCheck(&info) + ncclProxySaveOp(comm, op, needed);
}
extern const char version[];
const char version[] = "NCCL version 2.27.5+cuda12.9";
