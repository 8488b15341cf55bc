// SALIENT's route on the CPU: threads that each prepare a whole batch (sample every hop, renumber, copy feature rows and
// labels) into one of a few slots that are used again and again. Whoever waits sleeps on a condition variable.
//
// Sampling is Robert Floyd's, with its bound mended: random numbers are counted from (seed of the batch and hop, row), the
// same ones that kernels/sample_neighbors counts on, so a batch is the same whoever makes it. At each hop neighbours are
// sampled for all nodes seen so far (message-flow layers, as SALIENT), or, where asked for, for the newest only (as PyTorch
// Geometric). A seed that a batch has twice has two rows; as a neighbour it is the first of them.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr uint64_t STEP = 0x9e3779b97f4a7c15ull;
constexpr int BLOCK = 32;  // rows whose misses are in flight together

inline uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

inline int64_t below(uint64_t random, int64_t limit) {
    return static_cast<int64_t>((static_cast<unsigned __int128>(random) * static_cast<uint64_t>(limit)) >> 64);
}

struct Graph {
    const int64_t* rowptr;
    const int32_t* col;
    const char* features;
    int64_t row_bytes;
    const char* labels;
    int64_t label_bytes;
    const float* weights;  // of edges, null: all alike
};

// How neighbours are picked.
struct Way {
    bool newest;   // for the nodes that the hop before found only
    bool replace;  // the same neighbour may be picked again
};

struct Slot {
    int32_t* nodes;      // [most nodes], those of the batch first
    int32_t* local;      // hops one behind another, each [its rows, its fanout]
    char* rows;          // [most nodes, row_bytes]
    char* labels;        // [batch size, label_bytes]
    int64_t* places;     // as local: each picked edge's position in col; null: not wanted
    int64_t counts[16];  // nodes known before each hop, and after the last
    int64_t edges;       // neighbours sampled in all hops
    double times_s[3];   // when the batch was begun, sampled and sliced, on the clock of Python's time.perf_counter
    int64_t worker;      // the thread that made it
};

inline double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Global id -> local number. Entries of an earlier batch are told by their stamp, so nothing is cleared between batches.
class Numbers {
public:
    explicit Numbers(int64_t most) {
        int64_t size = 1024;
        while (size < 2 * most) {
            size *= 2;
        }
        entries.resize(static_cast<size_t>(size));
        mask = static_cast<uint32_t>(size - 1);
    }

    void begin() {
        if (++stamp == 0) {
            std::memset(entries.data(), 0, entries.size() * sizeof(Entry));
            stamp = 1;
        }
    }

    void prefetch(int32_t id) const { __builtin_prefetch(&entries[place(id)], 1); }

    // The number of id; `next` where it is new, and `fresh` says which.
    int32_t number(int32_t id, int32_t next, bool* fresh) {
        uint32_t at = place(id);
        while (entries[at].stamp == stamp && entries[at].id != id) {
            at = (at + 1) & mask;
        }
        *fresh = entries[at].stamp != stamp;
        if (*fresh) {
            entries[at] = Entry{stamp, id, next};
        }
        return entries[at].number;
    }

private:
    struct Entry {
        uint32_t stamp;
        int32_t id;
        int32_t number;
    };

    uint32_t place(int32_t id) const { return static_cast<uint32_t>(static_cast<uint32_t>(id) * STEP >> 32) & mask; }

    std::vector<Entry> entries;
    uint32_t mask = 0;
    uint32_t stamp = 0;
};

inline double uniform(uint64_t random) { return (static_cast<double>(random >> 11) + 0.5) * 0x1.0p-53; }

// Positions of up to `fanout` of a row's edges, all alike; -1 behind them.
void pick(int64_t first, int64_t degree, int fanout, bool replace, uint64_t key, int64_t* mine) {
    if (replace && degree > 0) {
        for (int i = 0; i < fanout; ++i) {
            mine[i] = first + below(mix(key + STEP * static_cast<uint64_t>(i)), degree);
        }
    } else if (degree <= fanout) {
        for (int i = 0; i < fanout; ++i) {
            mine[i] = i < degree ? first + i : -1;
        }
    } else {
        for (int i = 0; i < fanout; ++i) {
            const int64_t last = degree - fanout + i;
            const int64_t at = first + below(mix(key + STEP * static_cast<uint64_t>(i)), last + 1);
            bool taken = false;
            for (int before = 0; before < i; ++before) {
                taken |= mine[before] == at;
            }
            mine[i] = taken ? first + last : at;
        }
    }
}

// The same in proportion to weights: without replacement those of the greatest log(u) / weight (Efraimidis and Spirakis). Edges of
// weight 0 are never picked.
void pick_weighted(
    const float* weights, int64_t first, int64_t degree, int fanout, bool replace, uint64_t key, int64_t* mine,
    std::vector<std::pair<double, int64_t>>& keyed) {
    std::fill(mine, mine + fanout, -1);
    keyed.clear();
    double sum = 0;
    for (int64_t at = first; at < first + degree; ++at) {
        const double weight = weights[at];
        if (weight > 0) {
            sum += weight;
            const double rank = replace ? sum : std::log(uniform(mix(key + STEP * static_cast<uint64_t>(at - first)))) / weight;
            keyed.emplace_back(rank, at);
        }
    }
    if (replace) {
        for (int i = 0; i < fanout && !keyed.empty(); ++i) {
            const double drawn = sum * uniform(mix(key + STEP * static_cast<uint64_t>(i)));
            const auto found = std::lower_bound(keyed.begin(), keyed.end(), std::pair<double, int64_t>(drawn, -1));
            mine[i] = found == keyed.end() ? keyed.back().second : found->second;
        }
        return;
    }
    const size_t count = std::min(keyed.size(), static_cast<size_t>(fanout));
    std::partial_sort(keyed.begin(), keyed.begin() + static_cast<int64_t>(count), keyed.end(), std::greater<>());
    for (size_t i = 0; i < count; ++i) {
        mine[i] = keyed[i].second;
    }
}

// One hop: for the nodes from `from` to `rows` up to `fanout` neighbours each, which are added to `edges`; returns how many nodes
// are known afterwards. at: positions of what was picked, as local; null: not wanted.
int64_t sample_hop(
    const Graph& graph, const Way& way, Numbers& numbers, int32_t* nodes, int64_t from, int64_t rows, int64_t known, int fanout,
    uint64_t seed, int32_t* local, int64_t* at, int64_t* places, std::vector<std::pair<double, int64_t>>& keyed,
    int64_t* edges) {
    const uint64_t call = mix(seed + STEP);
    for (int64_t begin = from; begin < rows; begin += BLOCK) {
        const int64_t end = begin + BLOCK < rows ? begin + BLOCK : rows;
        for (int64_t row = end; row < end + BLOCK && row < rows; ++row) {
            __builtin_prefetch(graph.rowptr + nodes[row]);
        }
        for (int64_t row = begin; row < end; ++row) {
            int64_t* mine = places + (row - begin) * fanout;
            const int64_t first = graph.rowptr[nodes[row]];
            const int64_t degree = graph.rowptr[nodes[row] + 1] - first;
            const uint64_t key = mix(call ^ (static_cast<uint64_t>(row) * 0xd1342543de82ef95ull + 1));
            if (graph.weights == nullptr) {
                pick(first, degree, fanout, way.replace, key, mine);
            } else {
                pick_weighted(graph.weights, first, degree, fanout, way.replace, key, mine, keyed);
            }
            for (int i = 0; i < fanout; ++i) {
                __builtin_prefetch(graph.col + (mine[i] < 0 ? first : mine[i]));
            }
        }
        int32_t* out = local + (begin - from) * fanout;
        const int64_t count = (end - begin) * fanout;
        if (at != nullptr) {
            std::memcpy(at + (begin - from) * fanout, places, static_cast<size_t>(count) * sizeof(int64_t));
        }
        for (int64_t i = 0; i < count; ++i) {
            out[i] = places[i] < 0 ? -1 : graph.col[places[i]];
            if (out[i] >= 0) {
                numbers.prefetch(out[i]);
                ++*edges;
            }
        }
        for (int64_t i = 0; i < count; ++i) {
            if (out[i] >= 0) {
                bool fresh;
                const int32_t id = out[i];
                out[i] = numbers.number(id, static_cast<int32_t>(known), &fresh);
                if (fresh) {
                    nodes[known++] = id;
                }
            }
        }
    }
    return known;
}

class Loader {
public:
    Loader(
        const Graph& graph, const Way& way, const int64_t* fanouts, int64_t hops, int64_t batch, int64_t most,
        int64_t threads, std::vector<Slot> slots)
        : graph(graph), way(way), fanouts(fanouts, fanouts + hops), batch(batch), most(most), slots(std::move(slots)),
          done(this->slots.size(), -1) {
        for (int64_t i = 0; i < threads; ++i) {
            workers.emplace_back([this, i] { work(i); });
        }
    }

    ~Loader() {
        {
            std::lock_guard<std::mutex> guard(lock);
            closing = true;
        }
        wake_workers.notify_all();
        for (std::thread& worker : workers) {
            worker.join();
        }
    }

    // Batches of these ids, in order; the last may be smaller. What an earlier epoch left undone is dropped.
    void begin(const int64_t* given, int64_t count, int64_t seed) {
        std::unique_lock<std::mutex> guard(lock);
        ++epoch;
        total = taken = released = delivered = 0;
        wake_consumer.wait(guard, [this] { return busy == 0; });
        std::fill(done.begin(), done.end(), -1);
        ids.assign(given, given + count);
        epoch_seed = seed;
        total = (count + batch - 1) / batch;
        guard.unlock();
        wake_workers.notify_all();
    }

    // The slot of the next batch, waiting for it; -1 at the end of the epoch.
    int64_t next() {
        std::unique_lock<std::mutex> guard(lock);
        if (delivered == total) {
            return -1;
        }
        const size_t at = static_cast<size_t>(delivered) % slots.size();
        wake_consumer.wait(guard, [&] { return done[at] == delivered; });
        ++delivered;
        return static_cast<int64_t>(at);
    }

    // The oldest delivered batch is not needed any more.
    void release() {
        {
            std::lock_guard<std::mutex> guard(lock);
            ++released;
        }
        wake_workers.notify_all();
    }

    const Slot& slot(int64_t at) const { return slots[static_cast<size_t>(at)]; }

private:
    void work(int64_t worker) {
        Numbers numbers(most);
        int widest = 1;
        for (const int64_t fanout : fanouts) {
            widest = fanout > widest ? static_cast<int>(fanout) : widest;
        }
        std::vector<int64_t> places(static_cast<size_t>(BLOCK) * static_cast<size_t>(widest));
        std::vector<std::pair<double, int64_t>> keyed;
        std::unique_lock<std::mutex> guard(lock);
        while (true) {
            wake_workers.wait(guard, [this] {
                return closing || (taken < total && taken < released + static_cast<int64_t>(slots.size()));
            });
            if (closing) {
                return;
            }
            const int64_t mine = taken++;
            const int64_t of = epoch;
            ++busy;
            guard.unlock();
            Slot& slot = slots[static_cast<size_t>(mine) % slots.size()];
            slot.worker = worker;
            slot.times_s[0] = now_s();
            prepare(mine, slot, numbers, places.data(), keyed);
            slot.times_s[2] = now_s();
            guard.lock();
            --busy;
            if (of == epoch) {
                done[static_cast<size_t>(mine) % slots.size()] = mine;
            }
            wake_consumer.notify_all();
        }
    }

    void prepare(
        int64_t number, Slot& slot, Numbers& numbers, int64_t* places, std::vector<std::pair<double, int64_t>>& keyed) {
        const int64_t first = number * batch;
        const int64_t left = static_cast<int64_t>(ids.size()) - first;
        int64_t known = left < batch ? left : batch;
        numbers.begin();
        for (int64_t i = 0; i < known; ++i) {
            bool fresh;
            slot.nodes[i] = static_cast<int32_t>(ids[static_cast<size_t>(first + i)]);
            if (graph.labels != nullptr) {
                std::memcpy(
                    slot.labels + i * graph.label_bytes, graph.labels + slot.nodes[i] * graph.label_bytes,
                    static_cast<size_t>(graph.label_bytes));
            }
            numbers.number(slot.nodes[i], static_cast<int32_t>(i), &fresh);
        }
        int32_t* local = slot.local;
        int64_t* at = slot.places;
        int64_t before = 0;
        slot.edges = 0;
        for (size_t hop = 0; hop < fanouts.size(); ++hop) {
            const int64_t rows = known;
            const int64_t from = way.newest ? before : 0;
            const int fanout = static_cast<int>(fanouts[hop]);
            slot.counts[hop] = rows;
            const uint64_t seed = static_cast<uint64_t>(epoch_seed) + static_cast<uint64_t>(number) * 8 + hop;
            known = sample_hop(
                graph, way, numbers, slot.nodes, from, rows, known, fanout, seed, local, at, places, keyed, &slot.edges);
            local += (rows - from) * fanout;
            at += at == nullptr ? 0 : (rows - from) * fanout;
            before = rows;
        }
        slot.counts[fanouts.size()] = known;
        slot.times_s[1] = now_s();
        if (graph.features == nullptr) {
            return;
        }
        for (int64_t i = 0; i < known; ++i) {
            if (i + 8 < known) {
                const char* ahead = graph.features + slot.nodes[i + 8] * graph.row_bytes;
                for (int64_t at = 0; at < graph.row_bytes; at += 64) {
                    __builtin_prefetch(ahead + at);
                }
            }
            std::memcpy(
                slot.rows + i * graph.row_bytes, graph.features + slot.nodes[i] * graph.row_bytes,
                static_cast<size_t>(graph.row_bytes));
        }
    }

    const Graph graph;
    const Way way;
    const std::vector<int64_t> fanouts;
    const int64_t batch;
    const int64_t most;
    std::vector<Slot> slots;
    std::vector<int64_t> done;  // slot -> the batch that it holds whole, -1 for none
    std::vector<int64_t> ids;
    std::vector<std::thread> workers;
    std::mutex lock;
    std::condition_variable wake_workers;
    std::condition_variable wake_consumer;
    int64_t epoch = 0;
    int64_t epoch_seed = 0;
    int64_t total = 0;
    int64_t taken = 0;
    int64_t delivered = 0;
    int64_t released = 0;
    int64_t busy = 0;
    bool closing = false;
};

// The in-neighbours of nodes of one type, which are of one type too.
struct Relation {
    const int64_t* rowptr;
    const int32_t* col;
    const float* weights;  // null: all alike
    const int64_t* times;  // of edges, a row's in order; null: none has one
    int64_t source;        // types' numbers
    int64_t target;
};

// When each seed's neighbourhood is looked at: edges that are later are not there.
struct Moment {
    const int64_t* times;  // of seeds; null: all edges are there
    bool last;             // the latest neighbours, not any
};

// A neighbourhood in graphs of several relations: at each hop every relation is sampled for the nodes that the hop before found.
// disjoint: every seed has a neighbourhood of its own.
class Neighbourhood {
public:
    Neighbourhood(const Relation* relations, int64_t count, int64_t types, bool disjoint)
        : relations(relations, relations + count), disjoint(disjoint), nodes(static_cast<size_t>(types)),
          trees(static_cast<size_t>(types)), steps(static_cast<size_t>(types)), columns(static_cast<size_t>(count)),
          rows(static_cast<size_t>(count)), places(static_cast<size_t>(count)), hops(static_cast<size_t>(count)), entries(1024) {}

    // seeds: of each type in turn, up to ends[type]. fanouts: of each hop of each relation, -1 for all.
    void sample(
        const int64_t* seeds, const int64_t* ends, const int64_t* fanouts, int64_t depth, int64_t seed, bool replace,
        const Moment& moment) {
        for (int64_t i = 0, type = 0; type < static_cast<int64_t>(nodes.size()); ++type) {
            for (; i < ends[type]; ++i) {
                const int64_t own = static_cast<int64_t>(nodes[static_cast<size_t>(type)].size());
                number(type, seeds[i], i, own);  // of a seed that comes twice the first is the neighbour
                add(type, seeds[i], i);
            }
        }
        std::vector<size_t> begin(nodes.size(), 0);
        note_steps();
        std::vector<int64_t> mine;
        std::vector<std::pair<double, int64_t>> keyed;
        for (int64_t hop = 0; hop < depth; ++hop) {
            std::vector<size_t> end(nodes.size());
            for (size_t type = 0; type < nodes.size(); ++type) {
                end[type] = nodes[type].size();
            }
            for (size_t at = 0; at < relations.size(); ++at) {
                const Relation& of = relations[at];
                const uint64_t call = mix(static_cast<uint64_t>(seed) + STEP * (1 + static_cast<uint64_t>(hop) * relations.size() + at));
                for (size_t row = begin[static_cast<size_t>(of.target)]; row < end[static_cast<size_t>(of.target)]; ++row) {
                    const int64_t node = nodes[static_cast<size_t>(of.target)][row];
                    int64_t first = of.rowptr[node];
                    int64_t degree = of.rowptr[node + 1] - first;
                    const int64_t tree = disjoint ? trees[static_cast<size_t>(of.target)][row] : 0;
                    const int64_t asked = fanouts[hop * static_cast<int64_t>(relations.size()) + static_cast<int64_t>(at)];
                    if (of.times != nullptr && moment.times != nullptr) {
                        const int64_t* begun = of.times + first;
                        degree = std::upper_bound(begun, begun + degree, moment.times[tree]) - begun;
                        if (moment.last && asked >= 0 && degree > asked) {
                            first += degree - asked;
                            degree = asked;
                        }
                    }
                    // Beyond all neighbours there is nothing to pick, but again.
                    const int fanout = static_cast<int>(asked < 0 || (asked > degree && !replace) ? degree : asked);
                    const uint64_t key = mix(call ^ (static_cast<uint64_t>(row) * 0xd1342543de82ef95ull + 1));
                    mine.resize(static_cast<size_t>(fanout));
                    if (of.weights == nullptr) {
                        pick(first, degree, fanout, replace && asked >= 0, key, mine.data());
                    } else {
                        pick_weighted(of.weights, first, degree, fanout, replace && asked >= 0, key, mine.data(), keyed);
                    }
                    for (const int64_t place : mine) {
                        if (place >= 0) {
                            const int64_t next = static_cast<int64_t>(nodes[static_cast<size_t>(of.source)].size());
                            const int64_t column = number(of.source, of.col[place], tree, next);
                            if (column == next) {
                                add(of.source, of.col[place], tree);
                            }
                            columns[at].push_back(column);
                            rows[at].push_back(static_cast<int64_t>(row));
                            places[at].push_back(place);
                        }
                    }
                }
                hops[at].push_back(static_cast<int64_t>(rows[at].size()));
            }
            begin = end;
            note_steps();
        }
    }

    const std::vector<Relation> relations;
    const bool disjoint;
    std::vector<std::vector<int64_t>> nodes;  // of each type: ids
    std::vector<std::vector<int64_t>> trees;  // of each type: the seed whose neighbourhood each is in, where they are disjoint
    std::vector<std::vector<int64_t>> steps;  // of each type: nodes known before each hop and after the last
    std::vector<std::vector<int64_t>> columns, rows, places;  // of each relation: numbers of source and target, and place in col
    std::vector<std::vector<int64_t>> hops;   // of each relation: edges after each hop

private:
    struct Entry {
        int64_t id = -1;
        int64_t tree = 0;
        int32_t type = 0;
        int32_t number = 0;
    };

    void add(int64_t type, int64_t id, int64_t tree) {
        nodes[static_cast<size_t>(type)].push_back(id);
        if (disjoint) {
            trees[static_cast<size_t>(type)].push_back(tree);
        }
    }

    void note_steps() {
        for (size_t type = 0; type < nodes.size(); ++type) {
            steps[type].push_back(static_cast<int64_t>(nodes[type].size()));
        }
    }

    // The number that this node has among those of its type, `next` where it is new.
    int64_t number(int64_t type, int64_t id, int64_t tree, int64_t next) {
        if (2 * used >= entries.size()) {
            std::vector<Entry> before(2 * entries.size());
            before.swap(entries);
            for (const Entry& entry : before) {
                if (entry.id >= 0) {
                    entries[find(entry.type, entry.id, entry.tree)] = entry;
                }
            }
        }
        Entry& entry = entries[find(type, id, disjoint ? tree : 0)];
        if (entry.id < 0) {
            entry = Entry{id, disjoint ? tree : 0, static_cast<int32_t>(type), static_cast<int32_t>(next)};
            ++used;
        }
        return entry.number;
    }

    size_t find(int64_t type, int64_t id, int64_t tree) const {
        size_t at = mix(static_cast<uint64_t>(id) * STEP + static_cast<uint64_t>(tree) * 0xd1342543de82ef95ull + static_cast<uint64_t>(type));
        for (at &= entries.size() - 1; entries[at].id >= 0; at = (at + 1) & (entries.size() - 1)) {
            if (entries[at].id == id && entries[at].tree == tree && entries[at].type == type) {
                break;
            }
        }
        return at;
    }

    std::vector<Entry> entries;
    size_t used = 0;
};

void copy_to(int64_t* out, const std::vector<int64_t>& values) { std::copy(values.begin(), values.end(), out); }

}  // namespace

extern "C" {

// sizes [types * (hops + 1) + relations * hops]: of each type the nodes known before each hop and after the last, of each relation the
// edges after each hop. seed_times: of each seed, null where edges have none. Close what it returns with neighbourhood_take.
void* neighbourhood_sample(
    const Relation* relations, int64_t count, int64_t types, const int64_t* seeds, const int64_t* ends, const int64_t* fanouts,
    int64_t hops, int64_t seed, int64_t replace, int64_t disjoint, const int64_t* seed_times, int64_t last, int64_t* sizes) {
    Neighbourhood* made = new Neighbourhood(relations, count, types, disjoint != 0);
    made->sample(seeds, ends, fanouts, hops, seed, replace != 0, Moment{seed_times, last != 0});
    for (const auto& steps : made->steps) {
        copy_to(sizes, steps);
        sizes += steps.size();
    }
    for (const auto& edges : made->hops) {
        copy_to(sizes, edges);
        sizes += edges.size();
    }
    return made;
}

// nodes, trees [types], columns, rows, places [relations]: where each array goes. trees may be null.
void neighbourhood_take(
    void* given, int64_t* const* nodes, int64_t* const* trees, int64_t* const* columns, int64_t* const* rows,
    int64_t* const* places) {
    const Neighbourhood* made = static_cast<const Neighbourhood*>(given);
    for (size_t type = 0; type < made->nodes.size(); ++type) {
        copy_to(nodes[type], made->nodes[type]);
        if (trees != nullptr) {
            copy_to(trees[type], made->trees[type]);
        }
    }
    for (size_t at = 0; at < made->relations.size(); ++at) {
        copy_to(columns[at], made->columns[at]);
        copy_to(rows[at], made->rows[at]);
        copy_to(places[at], made->places[at]);
    }
    delete made;
}

// slots: five addresses each (nodes, local, rows, labels, places). features, labels, weights and places may be null: then
// there are none.
void* loader_open(
    const int64_t* rowptr, const int32_t* col, const char* features, int64_t row_bytes, const char* labels,
    int64_t label_bytes, const float* weights, int64_t newest, int64_t replace, const int64_t* fanouts, int64_t hops,
    int64_t batch, int64_t most, int64_t threads, void* const* addresses, int64_t slots) {
    std::vector<Slot> made(static_cast<size_t>(slots));
    for (int64_t i = 0; i < slots; ++i) {
        Slot& slot = made[static_cast<size_t>(i)];
        slot.nodes = static_cast<int32_t*>(addresses[5 * i]);
        slot.local = static_cast<int32_t*>(addresses[5 * i + 1]);
        slot.rows = static_cast<char*>(addresses[5 * i + 2]);
        slot.labels = static_cast<char*>(addresses[5 * i + 3]);
        slot.places = static_cast<int64_t*>(addresses[5 * i + 4]);
    }
    const Graph graph{rowptr, col, features, row_bytes, labels, label_bytes, weights};
    return new Loader(graph, Way{newest != 0, replace != 0}, fanouts, hops, batch, most, threads, std::move(made));
}

void loader_begin(void* loader, const int64_t* ids, int64_t count, int64_t seed) {
    static_cast<Loader*>(loader)->begin(ids, count, seed);
}

// counts [hops + 1]: nodes known before each hop and after the last.
int64_t loader_next(void* loader, int64_t* counts, int64_t hops) {
    const int64_t at = static_cast<Loader*>(loader)->next();
    if (at >= 0) {
        std::memcpy(counts, static_cast<Loader*>(loader)->slot(at).counts, static_cast<size_t>(hops + 1) * sizeof(int64_t));
    }
    return at;
}

// made [4]: when the slot's batch was begun, sampled and sliced, in seconds, and the number of the thread that did it.
void loader_made(void* loader, int64_t slot, double* made) {
    const Slot& of = static_cast<Loader*>(loader)->slot(slot);
    std::memcpy(made, of.times_s, sizeof(of.times_s));
    made[3] = static_cast<double>(of.worker);
}

int64_t loader_edges(void* loader, int64_t slot) { return static_cast<Loader*>(loader)->slot(slot).edges; }

void loader_release(void* loader) { static_cast<Loader*>(loader)->release(); }

void loader_close(void* loader) { delete static_cast<Loader*>(loader); }
}
