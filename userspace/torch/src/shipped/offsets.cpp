// Prints where the fields are that the crate `torch` reads, as one line of JSON. It is compiled against the headers of a torch release's
// wheel (`cargo xtask make torch-offsets`, with -fno-access-control); which fields there are depends on the version, which MINOR tells.

#if MINOR >= 6
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>
#elif MINOR == 5
#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>
#else
#include <torch/csrc/distributed/c10d/TraceUtils.h>
#endif
#include <torch/csrc/profiler/combined_traceback.h>

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <tuple>

#if MINOR >= 8
struct Event {
    bool query();
};
using Recorder = c10d::FlightRecorder<Event>;
#elif MINOR >= 6
using Recorder = c10d::FlightRecorder;
#else
using Recorder = c10d::NCCLTraceBuffer;
#endif
using Entry = Recorder::Entry;
using Traceback = torch::CapturedTraceback;
using Group = std::map<std::tuple<std::string, std::string>, std::vector<uint64_t>>::value_type;

// Room for objects that are never constructed: only addresses in them are taken.
alignas(64) static char room[1 << 16];

template <typename Struct> static Struct &made() {
    static_assert(sizeof(Struct) < sizeof room);
    return *reinterpret_cast<Struct *>(room);
}

static const char *comma = "";

static void begin(const char *name) {
    printf("%s\"%s\":{", comma, name);
    comma = "";
}

static void end() {
    printf("}");
    comma = ",";
}

static void number(const char *name, size_t value) {
    printf("%s\"%s\":%zu", comma, name, value);
    comma = ",";
}

template <typename Field> static void field(const char *name, const Field &field) {
    number(name, reinterpret_cast<const char *>(&field) - room);
}

template <typename Number, typename Name, typename... Elements>
static void work(const char *what, Number &seq, Name &name, Elements &...elements) {
    static const char *const names[] = {"elements_in", "elements_out"};
    begin(what);
    field("seq", seq);
    field("name", name);
    size_t at = 0;
    (field(names[at++], elements), ...);
    end();
}

// torch's headers have variables that are constructed before `main`, with functions of libraries that are not there. This runs before them.
__attribute__((constructor(101))) static void print(int, char **arguments) {
    printf("{\"made_from\":[\"%s\"],\"tried\":\"headers\",\"version\":{\"major\":2,\"minor\":%d},\"cxx11\":%s", arguments[1], MINOR,
           _GLIBCXX_USE_CXX11_ABI ? "true" : "false");
    comma = ",";

    auto &recorder = made<Recorder>();
    begin("recorder");
    number("size", sizeof(Recorder));
    field("enabled", recorder.enabled_);
    field("capture_cpp_stack", recorder.capture_cpp_stack_);
    field("mutex", recorder.mutex_);
    field("entries", recorder.entries_);
    field("max_entries", recorder.max_entries_);
    field("next", recorder.next_);
    field("id", recorder.id_);
#if MINOR >= 10
    field("reset_epoch", recorder.reset_epoch_);
#endif
#if MINOR >= 5
    field("statuses", recorder.all_pg_status_);
#endif
    field("groups", recorder.pg_name_to_ranks_);
#if MINOR >= 9
    field("library_version", recorder.comm_lib_version_);
#elif MINOR == 8
    field("library_version", recorder.nccl_version_);
#endif
#if MINOR >= 15
    field("rank", recorder.rank_);
#endif
    end();

    auto &entry = made<Entry>();
    begin("entry");
    number("size", sizeof(Entry));
    field("id", entry.id_);
#if MINOR >= 10
    field("reset_epoch", entry.reset_epoch_);
#endif
    field("pg_id", entry.pg_id_);
    field("group_name", std::get<0>(entry.pg_name_));
    field("group_description", std::get<1>(entry.pg_name_));
    field("collective_seq", entry.collective_seq_id_);
    field("p2p_seq", entry.p2p_seq_id_);
    field("op_id", entry.op_id_);
    field("profiling_name", entry.profiling_name_);
    field("traceback", entry.traceback_);
    field("time_created", entry.time_created_);
#if MINOR >= 5
    field("timeout_ms", entry.timeout_ms_);
#endif
    field("is_p2p", entry.isP2P_);
    field("duration", entry.duration_);
    field("time_started", entry.time_discovered_started_);
    field("time_completed", entry.time_discovered_completed_);
    field("input_dims", entry.input_dims_);
    field("input_dtypes", entry.input_dtypes_);
    field("output_dims", entry.output_dims_);
    field("output_dtypes", entry.output_dtypes_);
    field("sizes", entry.sizes_);
    number("dim_bytes", sizeof(decltype(entry.input_dims_)::value_type));
#if MINOR >= 8
    field("thread_id", entry.thread_id_);
    field("thread_name", entry.thread_name_);
#endif
    field("retired", entry.retired_);
    end();
    static_assert(sizeof(decltype(entry.input_dtypes_)::value_type) == 1);
    static_assert(sizeof(decltype(entry.sizes_)::value_type) == 8);
    static_assert(sizeof(decltype(entry.time_created_)) == 8);

    auto &traceback = made<Traceback>();
    auto &frame = made<Traceback::PyFrame>();
    begin("traceback");
    field("frames", traceback.frames_);
    number("frame_size", sizeof(Traceback::PyFrame));
    field("code", frame.code);
    field("last_instruction", frame.lasti);
    end();
    static_assert(sizeof(frame.lasti) == 4);

#if MINOR >= 5
    auto &status = made<c10d::ProcessGroupStatus>();
    begin("status");
    number("size", sizeof(c10d::ProcessGroupStatus));
    work("enqueued", status.lastEnqueuedSeq, status.lastEnqueuedWorkName, status.lastEnqueuedNumelIn, status.lastEnqueuedNumelOut);
#if MINOR >= 6
    work("started", status.lastStartedSeq, status.lastStartedWorkName, status.lastStartedNumelIn, status.lastStartedNumelOut);
#else
    work("started", status.lastStartedSeq, status.lastStartedWorkName);
#endif
    work("completed", status.lastCompletedSeq, status.lastCompletedWorkName, status.lastCompletedNumelIn,
         status.lastCompletedNumelOut);
    end();
#endif

    auto &group = made<Group>();
    begin("group");
    number("size", sizeof(Group));
    field("name", std::get<0>(group.first));
    field("description", std::get<1>(group.first));
    field("ranks", group.second);
    end();
    puts("}");
    fflush(stdout);
    _exit(0);
}

int main() {}
