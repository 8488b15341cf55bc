// Rows of a table in host memory, gathered by threads into memory that a GPU reads in order: out of it rows cross the bus at the
// rate of a copy, while a GPU that reads them where they lie waits for an address translation of each.
//
// A request is gathered in parts, so that the first can cross while the next ones are gathered. Whoever waits for a part gathers too.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>

namespace {

constexpr int64_t TAKEN = 64;  // rows that a thread takes at once; parts end where one of these does
constexpr int64_t AHEAD = 12;  // rows that are asked for before they are copied
constexpr int64_t LINE = 64;
constexpr int MOST_PARTS = 16;

struct Request {
    const char* table;
    const int32_t* ids;
    const int64_t* count;
    char* out;
    int64_t row_bytes;
    int64_t parts;  // at most MOST_PARTS
};

class Threads {
public:
    // Lets `count` threads live as long as the process.
    void start(int count) {
        const std::lock_guard<std::mutex> held(lock_);
        for (; started_ < count; ++started_) {
            std::thread([this] { live(); }).detach();
        }
    }

    void begin(const Request& request) {
        std::unique_lock<std::mutex> held(lock_);
        changed_.wait(held, [this] { return busy_ == 0; });
        request_ = request;
        rows_ = *request.count;
        takes_ = (rows_ + TAKEN - 1) / TAKEN;
        for (int part = 0; part < request.parts; ++part) {
            left_[part] = takes_ * (part + 1) / request.parts - takes_ * part / request.parts;
        }
        next_ = 0;
        ++round_;
        asked_.notify_all();
    }

    void finish(int part) {
        while (left_[part] > 0) {
            if (!gather_some()) {
                std::unique_lock<std::mutex> held(lock_);
                changed_.wait(held, [&] { return left_[part] == 0; });
            }
        }
    }

private:
    [[noreturn]] void live() {
        for (int64_t seen = 0;;) {
            {
                std::unique_lock<std::mutex> held(lock_);
                asked_.wait(held, [&] { return round_ != seen; });
                seen = round_;
                ++busy_;
            }
            while (gather_some()) {
            }
            const std::lock_guard<std::mutex> held(lock_);
            --busy_;
            changed_.notify_all();
        }
    }

    bool gather_some() {
        const int64_t take = next_.fetch_add(1);
        if (take >= takes_) {
            return false;
        }
        const int64_t size = request_.row_bytes;
        const int64_t end = std::min(rows_, (take + 1) * TAKEN);
        for (int64_t row = take * TAKEN; row < end; ++row) {
            if (row + AHEAD < rows_) {
                const char* later = request_.table + request_.ids[row + AHEAD] * size;
                for (int64_t byte = 0; byte < size; byte += LINE) {
                    __builtin_prefetch(later + byte);
                }
            }
            std::memcpy(request_.out + row * size, request_.table + request_.ids[row] * size, static_cast<size_t>(size));
        }
        int part = 0;
        while (take >= takes_ * (part + 1) / request_.parts) {
            ++part;
        }
        if (left_[part].fetch_sub(1) == 1) {
            const std::lock_guard<std::mutex> held(lock_);
            changed_.notify_all();
        }
        return true;
    }

    std::mutex lock_;
    std::condition_variable asked_;
    std::condition_variable changed_;
    int started_ = 0;
    int busy_ = 0;
    int64_t round_ = 0;
    Request request_{};
    int64_t rows_ = 0;
    int64_t takes_ = 0;
    std::atomic<int64_t> next_{0};
    std::atomic<int64_t> left_[MOST_PARTS] = {};
};

Threads& threads() {
    static Threads* made = new Threads;  // never destroyed: its threads end with the process
    return *made;
}

struct Part {
    const Request* request;
    int64_t number;
};

}  // namespace

extern "C" void gather_start(int64_t count) { threads().start(static_cast<int>(count)); }

// A part of its request, of which all parts are asked for in order, one request behind another. Returns when it is gathered.
extern "C" void gather_part(void* about) {
    const Part& part = *static_cast<const Part*>(about);
    if (part.number == 0) {
        threads().begin(*part.request);
    }
    threads().finish(static_cast<int>(part.number));
}
