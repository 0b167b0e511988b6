// Pools of memory that known functions touch first, in C++: templates, methods, and containers that allocate far below
// the function that asks for it.
//
// When all are built, one line of JSON says them; from then on `serve_requests` touches the hot ones every 50 ms;
// the idle ones stay untouched. Four threads build them, one after the other.
//
// `bytes` is counted, not measured: of a large block its whole pages, of a small one what glibc takes for it
// (`block_of`). What a container allocates is known from libstdc++: a node of a map of integers is a pointer and its
// value. `touched` is measured: by how much anonymous resident memory has grown while the pool was built.
//
// --recycle: each thread first allocates and frees as many bytes as its pools have, by `churn::open` and
// `churn::close`: half in blocks of 1 to 2 MiB, which go back to the kernel, half in blocks of 16 B to 64 KiB, which
// its arena keeps and pools are built in. One block of 1024 stays. `churn::steadily` goes on to replace small blocks.
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#define POOL __attribute__((noipa))

namespace {
constexpr std::size_t page = 4096, whole = 256; // Shares of the pools are of `whole`.
volatile std::uint64_t sink;

std::size_t pages_of(std::size_t length) { return (length + page - 1) / page * page; }

// Bytes that glibc uses for an allocation of `size`.
std::size_t block_of(std::size_t size) { return std::max<std::size_t>(32, (size + 8 + 15) / 16 * 16); }

// A pool that is served has a function to touch it; an idle one is kept alive by `owner` alone.
struct Built {
    std::size_t bytes;
    std::shared_ptr<void> owner;
    std::function<void()> touch;
};

template <class T> void touch_pages(std::vector<T> &values) {
    for (std::size_t at = 0; at < values.size(); at += page / sizeof(T))
        sink = sink + values[at];
}
} // namespace

namespace search {
// A vector, sized and filled at once.
template <class Key> POOL Built index_build(std::size_t bytes) {
    auto index = std::make_shared<std::vector<Key>>(bytes / sizeof(Key), Key{7});
    return {pages_of(bytes + 16), index, {}};
}
} // namespace search

namespace net {
struct Session {
    std::uint64_t user;
    std::array<char, 152> token;
};

class SessionCache {
  public:
    POOL std::size_t fill(std::size_t bytes) {
        std::size_t node = block_of(sizeof(void *) + sizeof(std::pair<const std::uint64_t, Session>));
        std::size_t count = bytes / (node + sizeof(void *));
        sessions.reserve(count);
        for (std::uint64_t at = 0; at < count; at++)
            sessions.emplace(at * 0x9e3779b97f4a7c15, Session{at, {}});
        return count * node + pages_of(sessions.bucket_count() * sizeof(void *));
    }

  private:
    std::unordered_map<std::uint64_t, Session> sessions;
};

Built open_sessions(std::size_t bytes) {
    auto cache = std::make_shared<SessionCache>();
    return {cache->fill(bytes), cache, {}};
}
} // namespace net

namespace media {
class Image {
  public:
    // Rows of their own, each grown by push_back.
    POOL explicit Image(std::size_t bytes) {
        constexpr std::size_t row_bytes = 16 << 10;
        for (std::size_t at = 0; at < bytes / row_bytes; at++) {
            auto row = std::make_unique<std::vector<std::uint8_t>>();
            row->reserve(row_bytes);
            for (std::size_t column = 0; column < row_bytes; column++)
                row->push_back(static_cast<std::uint8_t>(column ^ at));
            rows.push_back(std::move(row));
        }
    }
    std::size_t bytes() const { return rows.size() * (block_of(16 << 10) + block_of(sizeof *rows[0])); }

  private:
    std::vector<std::unique_ptr<std::vector<std::uint8_t>>> rows;
};

Built decode(std::size_t bytes) {
    auto image = std::make_shared<Image>(bytes);
    return {image->bytes(), image, {}};
}
} // namespace media

namespace logs {
// Storage that is not initialized, of which three quarters are stored to.
POOL Built ring_open(std::size_t bytes) {
    std::shared_ptr<char[]> ring(new char[bytes / 3 * 4]);
    for (std::size_t at = 0; at < bytes; at += 64)
        ring[at] = 1;
    return {pages_of(bytes), ring, [bytes, start = ring.get()] {
                for (std::size_t at = 0; at < bytes; at += page)
                    start[at] = static_cast<char>(start[at] + 1);
            }};
}
} // namespace logs

namespace metrics {
// Strings too long to be kept in the node, in an ordered map.
POOL Built table_load(std::size_t bytes) {
    using Table = std::map<std::uint64_t, std::string>;
    constexpr std::size_t text = 400;
    std::size_t row = block_of(32 + sizeof(Table::value_type)) + block_of(text + 1);
    auto table = std::make_shared<Table>();
    for (std::uint64_t at = 0; at < bytes / row; at++)
        table->emplace(at, std::string(text, 'm'));
    return {bytes / row * row, table, [table] {
                for (auto &[key, name] : *table)
                    sink = sink + key + static_cast<unsigned char>(name[0]) + static_cast<unsigned char>(name[text - 1]);
            }};
}
} // namespace metrics

namespace undo {
struct Step {
    std::uint64_t number;
    std::array<std::uint64_t, 12> state;
};

// A list, appended to by an algorithm.
POOL Built journal_reserve(std::size_t bytes) {
    auto steps = std::make_shared<std::list<Step>>();
    std::size_t node = block_of(2 * sizeof(void *) + sizeof(Step)), count = bytes / node;
    std::generate_n(std::back_inserter(*steps), count, [number = std::uint64_t{}]() mutable { return Step{number++, {}}; });
    return {count * node, steps, [steps] {
                for (auto &step : *steps)
                    sink = sink + step.number;
            }};
}
} // namespace undo

namespace churn {
using Blocks = std::vector<std::unique_ptr<char[]>>;

// Half of `bytes` in large blocks; of the rest as many bytes in each power of two.
POOL void open(Blocks &blocks, std::size_t bytes, std::mt19937_64 &random) {
    for (std::size_t opened = 0; opened < bytes;) {
        std::size_t bits = opened < bytes / 2 ? 20 : 4;
        while (bits < 15 && random() % 2)
            bits++;
        std::size_t size = (std::size_t{1} << bits) + random() % (std::size_t{1} << bits);
        blocks.emplace_back(new char[size]);
        std::memset(blocks.back().get(), 0x11, size);
        opened += size;
    }
}

// Frees them in no order, but for one of 1024.
POOL void close(Blocks &blocks, std::mt19937_64 &random) {
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (std::size_t at = 0; at < blocks.size(); at++)
        if (at % 1024 == 1023)
            static_cast<void>(blocks[at].release());
        else
            blocks[at].reset();
    Blocks().swap(blocks);
}

POOL void steadily() {
    std::mt19937_64 random(7);
    Blocks held(2048);
    for (;;) {
        for (int turn = 0; turn < 512; turn++) {
            std::size_t size = 16 + random() % 1024;
            auto &block = held[random() % held.size()];
            block.reset(new char[size]);
            std::memset(block.get(), 0x22, size);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}
} // namespace churn

namespace {
const std::array<const char *, 4> threads = {"main", "session-filler", "decoder", "log-writer"};

struct Pool {
    const char *function;
    Built (*build)(std::size_t);
    std::size_t share;
    bool is_idle;
    int thread;
    Built built = {};
    std::size_t touched = 0;
};

std::array<Pool, 6> pools = {{
    {"search::index_build", search::index_build<std::uint64_t>, 96, true, 0},
    {"net::SessionCache::fill", net::open_sessions, 40, true, 1},
    {"media::Image::Image", media::decode, 32, true, 2},
    {"logs::ring_open", logs::ring_open, 56, false, 3},
    {"metrics::table_load", metrics::table_load, 24, false, 0},
    {"undo::journal_reserve", undo::journal_reserve, 8, true, 0},
}};

std::size_t mib = 256;
bool is_recycled = false;
std::barrier all_churned(threads.size()), one_built(threads.size());

// Anonymous resident memory.
std::size_t resident() {
    std::ifstream file("/proc/self/smaps_rollup");
    std::string word;
    while (file >> word)
        if (word == "Anonymous:") {
            std::size_t kib = 0;
            file >> kib;
            return kib << 10;
        }
    std::perror("cannot read /proc/self/smaps_rollup");
    std::exit(1);
}

void build_and_measure(Pool &pool) {
    std::size_t before = resident();
    pool.built = pool.build((pool.share * mib << 20) / whole);
    std::size_t after = resident();
    pool.touched = after > before ? after - before : 0;
}

void build_on(int thread) {
    if (is_recycled) {
        std::mt19937_64 random(static_cast<unsigned>(thread) + 3);
        std::size_t share = 0;
        for (auto &pool : pools)
            share += pool.thread == thread ? pool.share : 0;
        churn::Blocks blocks;
        churn::open(blocks, (share * mib << 20) / whole, random);
        churn::close(blocks, random);
    }
    all_churned.arrive_and_wait();
    for (auto &pool : pools) {
        if (pool.thread == thread)
            build_and_measure(pool);
        one_built.arrive_and_wait();
    }
}

template <class Run> void start(const char *name, Run run) {
    std::thread thread(run);
    pthread_setname_np(thread.native_handle(), name);
    thread.detach();
}

void serve_requests(double seconds) {
    for (double served = 0; served < seconds; served += 0.05) {
        for (auto &pool : pools)
            if (!pool.is_idle)
                pool.built.touch();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
}

void print_truth() {
    std::printf("{\"language\":\"cpp\",\"pools\":[");
    for (auto &pool : pools)
        std::printf("%s{\"function\":\"%s\",\"bytes\":%zu,\"touched\":%zu,\"idle\":%s,\"thread\":\"%s\"}",
                    &pool == &pools[0] ? "" : ",", pool.function, pool.built.bytes, pool.touched,
                    pool.is_idle ? "true" : "false", threads[static_cast<std::size_t>(pool.thread)]);
    std::printf("]}\n");
    std::fflush(stdout);
}
} // namespace

int main(int argc, char **argv) {
    double seconds = 60;
    for (int at = 1; at < argc; at++) {
        std::string flag = argv[at];
        if (flag == "--recycle")
            is_recycled = true;
        else if (flag == "--mib" && at + 1 < argc)
            mib = std::stoul(argv[++at]);
        else if (flag == "--seconds" && at + 1 < argc)
            seconds = std::stod(argv[++at]);
        else {
            std::fprintf(stderr, "usage: pools [--mib N] [--seconds S] [--recycle]\n");
            return 2;
        }
    }
    for (int thread = 1; thread < static_cast<int>(threads.size()); thread++)
        start(threads[static_cast<std::size_t>(thread)], [thread] {
            build_on(thread);
            for (;;)
                pause();
        });
    build_on(0);
    if (is_recycled)
        start("churn", churn::steadily);
    print_truth();
    serve_requests(seconds);
    // Threads are still there: no destructors of what they use.
    std::quick_exit(0);
}
