// A stand-in for torch's libraries: the flight recorder's structs as torch MINOR has them, written down once more by hand, with libstdc++'s own
// containers, and functions that fill them and say what they hold. Built by g++ as libtorch_cuda.so (and, for what 2.15 keeps there, as
// libtorch_cpu.so) by `test_support::torch_double`. Nothing in it is torch's code.
//
// After torch/csrc/distributed/c10d/FlightRecorder.hpp (2.5: NCCLUtils.hpp, 2.4: TraceUtils.h), logger.hpp, and torch/csrc/profiler/combined_traceback.h.

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace c10 {
enum class ScalarType : int8_t {};

// As llvm::SmallVector: pointer, size and capacity, and the first elements in place.
template <typename T, unsigned N> struct SmallVector {
    void *begin = room;
    uint32_t size = 0, capacity = N;
    alignas(T) char room[N * sizeof(T)];

    SmallVector() = default;
    SmallVector(const SmallVector &) = delete;
    SmallVector(SmallVector &&other) noexcept { *this = std::move(other); }
    SmallVector &operator=(SmallVector &&other) noexcept {
        clear();
        for (uint32_t at = 0; at < other.size; at++)
            push_back(other[at]);
        other.clear();
        return *this;
    }
    ~SmallVector() { clear(); }

    T &operator[](uint32_t at) const { return static_cast<T *>(begin)[at]; }
    void clear() {
        if (begin != room)
            free(begin);
        begin = room;
        size = 0;
        capacity = N;
    }
    void push_back(T value) {
        if (size == capacity) {
            void *larger = malloc(2 * capacity * sizeof(T));
            memcpy(larger, begin, size * sizeof(T));
            if (begin != room)
                free(begin);
            begin = larger;
            capacity *= 2;
        }
        (*this)[size++] = value;
    }
};
} // namespace c10

namespace torch {
struct GatheredContext {
    virtual ~GatheredContext() = default;
};

struct CapturedTraceback : GatheredContext {
    struct PyFrame {
        void *code;
        int lasti;
    };
    std::vector<PyFrame> frames_;
    std::vector<void *> cpp_frames_;
    std::vector<std::shared_ptr<int>> script_frames_;
    void *python_ = nullptr;
};
} // namespace torch

namespace at::cuda {
struct CUDAEvent {};
} // namespace at::cuda

namespace c10d {
struct ProcessGroupStatus {
    int64_t lastEnqueuedSeq{-1}, lastStartedSeq{-1}, lastCompletedSeq{-1};
    std::string lastEnqueuedWorkName, lastStartedWorkName, lastCompletedWorkName;
    size_t lastEnqueuedNumelIn, lastEnqueuedNumelOut;
    size_t lastCompletedNumelIn, lastCompletedNumelOut;
#if MINOR >= 6
    size_t lastStartedNumelIn, lastStartedNumelOut;
#endif
};

#if MINOR >= 6
using Dims = c10::SmallVector<int64_t, 4>;
#else
using Dims = c10::SmallVector<int, 4>;
#endif

template <typename EventType> struct FlightRecorder {
    struct Entry {
        size_t id_;
#if MINOR >= 10
        size_t reset_epoch_;
#endif
        size_t pg_id_;
        std::tuple<std::string, std::string> pg_name_;
        size_t collective_seq_id_, p2p_seq_id_, op_id_;
        std::string profiling_name_;
        std::shared_ptr<torch::CapturedTraceback> traceback_;
        EventType *start_, *end_;
        int64_t time_created_;
#if MINOR >= 5
        int64_t timeout_ms_;
#endif
        bool isP2P_;
        std::optional<float> duration_;
        std::optional<int64_t> time_discovered_started_, time_discovered_completed_;
        Dims input_dims_;
        std::vector<c10::ScalarType> input_dtypes_;
        Dims output_dims_;
        std::vector<c10::ScalarType> output_dtypes_;
        c10::SmallVector<int64_t, 8> sizes_;
#if MINOR >= 8
        std::thread::id thread_id_;
        std::string thread_name_;
#endif
        bool retired_ = false;
    };

    bool enabled_ = false;
    bool capture_cpp_stack_ = false;
    std::mutex mutex_;
    std::vector<Entry> entries_;
    size_t max_entries_ = 0, next_ = 0, id_ = 0;
#if MINOR >= 10
    size_t reset_epoch_ = 0;
    std::unordered_map<size_t, size_t> reset_epoch_start_idx_;
#endif
#if MINOR >= 5
    std::map<size_t, std::shared_ptr<ProcessGroupStatus>> all_pg_status_;
#endif
    std::map<std::tuple<std::string, std::string>, std::vector<uint64_t>> pg_name_to_ranks_;
#if MINOR >= 8
    std::string library_version_;
#endif
#if MINOR >= 15
    std::atomic<int> rank_{-1};
#endif

    static FlightRecorder *get() {
        static FlightRecorder *instance = new FlightRecorder();
        return instance;
    }

    FlightRecorder() {
        const char *size = getenv("TORCH_FR_BUFFER_SIZE");
        max_entries_ = size ? atoi(size) : 2000;
        enabled_ = max_entries_ > 0;
#if MINOR >= 10
        reset_epoch_start_idx_[0] = 0;
#endif
    }

    void add(Entry &&entry) {
        std::lock_guard<std::mutex> guard(mutex_);
        entry.id_ = id_;
#if MINOR >= 10
        entry.reset_epoch_ = reset_epoch_;
        const auto next = next_++;
        if (entries_.size() < max_entries_)
            entries_.emplace_back(std::move(entry));
        else
            entries_[next] = std::move(entry);
#else
        if (entries_.size() < max_entries_)
            entries_.emplace_back(std::move(entry));
        else
            entries_[next_++] = std::move(entry);
#endif
        if (next_ == max_entries_)
            next_ = 0;
        id_++;
    }
};

struct Event {};

#if MINOR >= 15 && defined(CPU)
FlightRecorder<Event> *getFlightRecorder(const std::string &backend) {
    static std::mutex mutex;
    static std::unordered_map<std::string, FlightRecorder<Event> *> registry;
    std::lock_guard<std::mutex> lock(mutex);
    auto &instance = registry[backend];
    if (instance == nullptr)
        instance = new FlightRecorder<Event>();
    return instance;
}
using Recorder = FlightRecorder<Event>;
static Recorder *recorder() { return getFlightRecorder("nccl2"); }
#else
using Recorder = FlightRecorder<at::cuda::CUDAEvent>;
static Recorder *recorder() { return Recorder::get(); }
#endif
} // namespace c10d

using c10d::Recorder;
using Entry = Recorder::Entry;

// Numbers separated by blanks.
static std::vector<int64_t> numbers(const char *text) {
    std::istringstream in(text);
    std::vector<int64_t> all;
    for (int64_t number; in >> number;)
        all.push_back(number);
    return all;
}

extern "C" {
void double_group(const char *name, const char *description, const char *ranks) {
    auto &members = c10d::recorder()->pg_name_to_ranks_[std::make_tuple(std::string(name), std::string(description))];
    for (int64_t rank : numbers(ranks))
        members.push_back(rank);
}

// `tensors`: of each tensor its element type, its number of dimensions, and these; inputs and outputs are told apart by a line.
// `frames`: addresses of code objects and instructions.
void double_record(size_t pg_id, const char *name, const char *description, size_t collective, size_t p2p, size_t op,
                   const char *function, int64_t created, bool is_p2p, const char *inputs, const char *outputs, const char *frames) {
    Entry entry{};
    entry.pg_id_ = pg_id;
    entry.pg_name_ = std::make_tuple(std::string(name), std::string(description));
    entry.collective_seq_id_ = collective;
    entry.p2p_seq_id_ = p2p;
    entry.op_id_ = op;
    entry.profiling_name_ = function;
    entry.traceback_ = std::make_shared<torch::CapturedTraceback>();
    auto words = numbers(frames);
    for (size_t at = 0; at + 1 < words.size(); at += 2)
        entry.traceback_->frames_.push_back({reinterpret_cast<void *>(words[at]), static_cast<int>(words[at + 1])});
    entry.time_created_ = created;
#if MINOR >= 5
    entry.timeout_ms_ = 600000;
#endif
    entry.isP2P_ = is_p2p;
    auto add = [&](const char *text, c10d::Dims &dims, std::vector<c10::ScalarType> &dtypes) {
        auto words = numbers(text);
        for (size_t at = 0; at + 1 < words.size();) {
            dtypes.push_back(static_cast<c10::ScalarType>(words[at++]));
            int64_t count = words[at++];
            dims.push_back(count);
            while (count-- > 0)
                entry.sizes_.push_back(words[at++]);
        }
    };
    add(inputs, entry.input_dims_, entry.input_dtypes_);
    add(outputs, entry.output_dims_, entry.output_dtypes_);
#if MINOR >= 8
    char thread_name[64] = "";
    pthread_getname_np(pthread_self(), thread_name, sizeof thread_name);
    entry.thread_id_ = std::this_thread::get_id();
    entry.thread_name_ = thread_name;
#endif
    c10d::recorder()->add(std::move(entry));
}

// The watchdog has noticed something of the entry `id`.
void double_notice(size_t id, int64_t started, int64_t completed, float duration, bool retired) {
    auto *recorder = c10d::recorder();
    std::lock_guard<std::mutex> guard(recorder->mutex_);
    auto &entry = recorder->entries_[id % recorder->max_entries_];
    if (started)
        entry.time_discovered_started_ = started;
    if (completed)
        entry.time_discovered_completed_ = completed;
    if (duration >= 0)
        entry.duration_ = duration;
    entry.retired_ = retired;
}

void double_status(size_t pg_id, int64_t enqueued, int64_t started, int64_t completed, const char *name, size_t elements) {
#if MINOR >= 5
    auto &status = c10d::recorder()->all_pg_status_[pg_id];
    if (!status)
        status = std::make_shared<c10d::ProcessGroupStatus>();
    status->lastEnqueuedSeq = enqueued;
    status->lastStartedSeq = started;
    status->lastCompletedSeq = completed;
    status->lastEnqueuedWorkName = name;
    status->lastEnqueuedNumelIn = status->lastEnqueuedNumelOut = elements;
    if (completed >= 0) {
        status->lastCompletedWorkName = name;
        status->lastCompletedNumelIn = status->lastCompletedNumelOut = elements;
    }
#endif
}

void double_library(const char *version, int rank) {
#if MINOR >= 8
    c10d::recorder()->library_version_ = version;
#endif
#if MINOR >= 15
    c10d::recorder()->rank_ = rank;
#endif
}

// A new epoch: what was recorded before no longer counts.
void double_reset() {
#if MINOR >= 10
    auto *recorder = c10d::recorder();
    std::lock_guard<std::mutex> guard(recorder->mutex_);
    recorder->reset_epoch_++;
    recorder->reset_epoch_start_idx_[recorder->reset_epoch_] = recorder->next_;
    recorder->id_ = 0;
#endif
}

// Records all the time on a thread of its own, until the process ends: entries whose fields follow from `op_id_`.
void double_keep_recording() {
    std::thread([] {
        for (size_t number = c10d::recorder()->id_;; number++) {
            std::string name = "nccl:operation_number_" + std::to_string(number);
            std::string tensor = "6 2 " + std::to_string(number) + " 3";
            double_record(0, "0", "default_pg", number, 0, number, name.c_str(), 1700000000000000000 + number, false, tensor.c_str(),
                          tensor.c_str(), "");
            double_notice(number, 0, number % 2 ? 1700000000000000000 + 2 * number : 0, -1, number % 2);
            // Some thousand a second: a reading of the ring takes some milliseconds.
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    }).detach();
}

// Where the fields are, in the form of the shipped table.
const char *double_layouts() {
    static std::string text;
    auto *recorder = c10d::recorder();
    std::ostringstream out;
    const char *comma = "";
    auto number = [&](const char *name, size_t value) {
        out << comma << '"' << name << "\":" << value;
        comma = ",";
    };
    auto begin = [&](const char *name) {
        out << comma << '"' << name << "\":{";
        comma = "";
    };
    auto end = [&] {
        out << "}";
        comma = ",";
    };
    out << "{\"version\":{\"major\":2,\"minor\":" << MINOR << "},\"cxx11\":" << (_GLIBCXX_USE_CXX11_ABI ? "true" : "false");
    comma = ",";
#define FIELD(name, of, member) number(name, reinterpret_cast<char *>(&(of).member) - reinterpret_cast<char *>(&(of)))
    begin("recorder");
    number("size", sizeof *recorder);
    FIELD("enabled", *recorder, enabled_);
    FIELD("capture_cpp_stack", *recorder, capture_cpp_stack_);
    FIELD("mutex", *recorder, mutex_);
    FIELD("entries", *recorder, entries_);
    FIELD("max_entries", *recorder, max_entries_);
    FIELD("next", *recorder, next_);
    FIELD("id", *recorder, id_);
#if MINOR >= 10
    FIELD("reset_epoch", *recorder, reset_epoch_);
#endif
#if MINOR >= 5
    FIELD("statuses", *recorder, all_pg_status_);
#endif
    FIELD("groups", *recorder, pg_name_to_ranks_);
#if MINOR >= 8
    FIELD("library_version", *recorder, library_version_);
#endif
#if MINOR >= 15
    FIELD("rank", *recorder, rank_);
#endif
    end();
    Entry entry{};
    begin("entry");
    number("size", sizeof entry);
    FIELD("id", entry, id_);
#if MINOR >= 10
    FIELD("reset_epoch", entry, reset_epoch_);
#endif
    FIELD("pg_id", entry, pg_id_);
    number("group_name", reinterpret_cast<char *>(&std::get<0>(entry.pg_name_)) - reinterpret_cast<char *>(&entry));
    number("group_description", reinterpret_cast<char *>(&std::get<1>(entry.pg_name_)) - reinterpret_cast<char *>(&entry));
    FIELD("collective_seq", entry, collective_seq_id_);
    FIELD("p2p_seq", entry, p2p_seq_id_);
    FIELD("op_id", entry, op_id_);
    FIELD("profiling_name", entry, profiling_name_);
    FIELD("traceback", entry, traceback_);
    FIELD("time_created", entry, time_created_);
#if MINOR >= 5
    FIELD("timeout_ms", entry, timeout_ms_);
#endif
    FIELD("is_p2p", entry, isP2P_);
    FIELD("duration", entry, duration_);
    FIELD("time_started", entry, time_discovered_started_);
    FIELD("time_completed", entry, time_discovered_completed_);
    FIELD("input_dims", entry, input_dims_);
    FIELD("input_dtypes", entry, input_dtypes_);
    FIELD("output_dims", entry, output_dims_);
    FIELD("output_dtypes", entry, output_dtypes_);
    FIELD("sizes", entry, sizes_);
    number("dim_bytes", MINOR >= 6 ? 8 : 4);
#if MINOR >= 8
    FIELD("thread_id", entry, thread_id_);
    FIELD("thread_name", entry, thread_name_);
#endif
    FIELD("retired", entry, retired_);
    end();
    torch::CapturedTraceback traceback;
    torch::CapturedTraceback::PyFrame frame{};
    begin("traceback");
    FIELD("frames", traceback, frames_);
    number("frame_size", sizeof frame);
    FIELD("code", frame, code);
    FIELD("last_instruction", frame, lasti);
    end();
#if MINOR >= 5
    c10d::ProcessGroupStatus status;
    begin("status");
    number("size", sizeof status);
#define WORK(name, Which)                                                                                                                  \
    begin(name);                                                                                                                           \
    FIELD("seq", status, last##Which##Seq);                                                                                                \
    FIELD("name", status, last##Which##WorkName);
#define ELEMENTS(Which)                                                                                                                    \
    FIELD("elements_in", status, last##Which##NumelIn);                                                                                    \
    FIELD("elements_out", status, last##Which##NumelOut);
    WORK("enqueued", Enqueued)
    ELEMENTS(Enqueued)
    end();
    WORK("started", Started)
#if MINOR >= 6
    ELEMENTS(Started)
#endif
    end();
    WORK("completed", Completed)
    ELEMENTS(Completed)
    end();
    end();
#endif
    std::pair<const std::tuple<std::string, std::string>, std::vector<uint64_t>> group;
    begin("group");
    number("size", sizeof group);
    number("name", reinterpret_cast<const char *>(&std::get<0>(group.first)) - reinterpret_cast<const char *>(&group));
    number("description", reinterpret_cast<const char *>(&std::get<1>(group.first)) - reinterpret_cast<const char *>(&group));
    FIELD("ranks", group, second);
    end();
    out << "}";
    text = out.str();
    return text.c_str();
}

// Makes the ring. As in torch, it is there from the first use on.
void double_begin() { c10d::recorder(); }
}
