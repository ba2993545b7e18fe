// In place of NCCL's own: what NCCLUtils.hpp and TraceUtils.h of torch 2.4 to 2.7 name. No layout that is read depends on it. The
// version is one without the features that would need more.
#pragma once

#define NCCL_MAJOR 2
#define NCCL_MINOR 3

typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef enum {
    ncclSuccess,
    ncclUnhandledCudaError,
    ncclSystemError,
    ncclInternalError,
    ncclInvalidArgument,
    ncclInvalidUsage,
    ncclRemoteError,
    ncclInProgress,
} ncclResult_t;
typedef int ncclRedOp_t;
typedef int ncclDataType_t;
typedef struct {
    int blocking;
} ncclConfig_t;

ncclResult_t ncclGetUniqueId(ncclUniqueId *);
ncclResult_t ncclCommInitRank(ncclComm_t *, int, ncclUniqueId, int);
ncclResult_t ncclCommDestroy(ncclComm_t);
ncclResult_t ncclCommAbort(ncclComm_t);
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *);
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t);
const char *ncclGetErrorString(ncclResult_t);
const char *ncclGetLastError(ncclComm_t);
