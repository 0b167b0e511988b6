// Pools of memory that known functions touch first, in Go: slices, maps and structures of pointers, built by several
// goroutines.
//
// When all are built, one line of JSON says them; from then on serveRequests touches the hot ones every 50 ms;
// the idle ones stay untouched. Goroutines that name a thread are locked to it; the thread of others is "any". Pools are
// built one after the other, so that each can be measured.
//
// `bytes` is what live objects take on the heap (MemStats.HeapAlloc after a collection, which rounds each object up to
// its size class), not resident memory: nothing moves, and a collection between two pools may leave spans for the next.
//
// `touched` is measured: by how much anonymous resident memory has grown while the pool was built. Collections run
// meanwhile as they do in any program, and what the runtime returns to the kernel then is missing in it. With --recycle
// it differs between runs, by which spans are free when.
//
// When all is built, collections are turned off: each would read all idle objects that hold pointers.
//
// --recycle: churnOpen first allocates as many bytes as all pools have. One half is given back to the kernel
// (debug.FreeOSMemory), the other is only collected: pools are built in it. churnSteadily goes on to replace small
// blocks, 0.4 MB of garbage a second.
package main

import (
	"flag"
	"fmt"
	"math/rand"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const (
	page  = 4096
	whole = 256 // Shares of the pools are of this.
)

// A built pool, with a function that touches all of it.
type built struct {
	touch func()
}

var sink uint64

// A slice, filled at once.
//
//go:noinline
func indexBuild(bytes int) built {
	index := make([]uint64, bytes/8)
	for at := range index {
		index[at] = uint64(at) + 1
	}
	return built{touch: func() { touchPages(index) }}
}

type session struct {
	user  uint64
	token [17]uint64
}

type sessionCache struct {
	byUser map[uint64]*session
}

// A map of pointers.
//
//go:noinline
func (cache *sessionCache) fill(bytes int) {
	// An object of 144 bytes, and its 16 bytes in a table that is between 7/16 and 7/8 full.
	count := bytes / 191
	cache.byUser = make(map[uint64]*session, count)
	for user := uint64(0); user < uint64(count); user++ {
		cache.byUser[user] = &session{user: user, token: [17]uint64{user}}
	}
}

func openSessions(bytes int) built {
	cache := new(sessionCache)
	cache.fill(bytes)
	return built{touch: func() {
		for user, session := range cache.byUser {
			sink += user + session.user
		}
	}}
}

// Rows of their own.
//
//go:noinline
func imageDecode(rows [][]byte) {
	for at := range rows {
		rows[at] = make([]byte, 64<<10)
		for column := range rows[at] {
			rows[at][column] = byte(column*at>>3) | 1
		}
	}
}

// Each of four goroutines decodes a quarter.
func decodeAll(bytes int) built {
	image := make([][]byte, bytes/(64<<10))
	var decoders sync.WaitGroup
	for part := range 4 {
		decoders.Add(1)
		go func() {
			defer decoders.Done()
			imageDecode(image[part*len(image)/4 : (part+1)*len(image)/4])
		}()
	}
	decoders.Wait()
	return built{touch: func() {
		for _, row := range image {
			for at := 0; at < len(row); at += page {
				row[at]++
			}
		}
	}}
}

// One large allocation, a word stored to on each page. Not on a part of them: whether the allocation itself clears all
// depends on what else the arena holds.
//
//go:noinline
func logRingOpen(bytes int) built {
	ring := make([]uint64, bytes/8)
	for at := 0; at < len(ring); at += page / 8 {
		ring[at] = uint64(at) + 1
	}
	return built{touch: func() { touchPages(ring) }}
}

type metric struct {
	name  string
	value float64
}

// A slice of structures and a string for each, of a generic type.
//
//go:noinline
func metricsTableLoad[Row any](bytes int, row func(at int) Row) built {
	table := make([]Row, bytes/448)
	for at := range table {
		table[at] = row(at)
	}
	return built{touch: func() { runtime.KeepAlive(table) }}
}

func loadMetrics(bytes int) built {
	return metricsTableLoad(bytes, func(at int) metric {
		return metric{name: strings.Repeat(string(rune('a'+at%26)), 416), value: float64(at)}
	})
}

type undoNode struct {
	left, right *undoNode
	state       [14]uint64
}

// A binary tree, built by recursion.
//
//go:noinline
func undoTreeGrow(depth int) *undoNode {
	node := &undoNode{state: [14]uint64{uint64(depth)}}
	if depth > 1 {
		node.left, node.right = undoTreeGrow(depth-1), undoTreeGrow(depth-1)
	}
	return node
}

func (node *undoNode) touch() {
	if node != nil {
		sink += node.state[0]
		node.left.touch()
		node.right.touch()
	}
}

func growTrees(bytes int) built {
	trees := make([]*undoNode, bytes/(511*128))
	for at := range trees {
		trees[at] = undoTreeGrow(9)
	}
	return built{touch: func() {
		for _, tree := range trees {
			tree.touch()
		}
	}}
}

// Half of the bytes in large blocks; of the rest as many in each power of two.
//
//go:noinline
func churnOpen(bytes int, random *rand.Rand) [][]byte {
	var blocks [][]byte
	for opened := 0; opened < bytes; {
		bits := 4
		if opened < bytes/2 {
			bits = 20
		}
		for bits < 15 && random.Intn(2) == 1 {
			bits++
		}
		block := make([]byte, 1<<bits+random.Intn(1<<bits))
		for at := range block {
			block[at] = 0x11
		}
		blocks = append(blocks, block)
		opened += len(block)
	}
	random.Shuffle(len(blocks), func(one, other int) { blocks[one], blocks[other] = blocks[other], blocks[one] })
	return blocks
}

var kept [][]byte

// Returns half of the blocks to the kernel and keeps one of 1024.
//
//go:noinline
func churnClose(blocks [][]byte) {
	for at := range blocks {
		if at%1024 == 1023 {
			kept = append(kept, blocks[at])
		}
		if at%2 == 0 {
			blocks[at] = nil
		}
	}
	debug.FreeOSMemory()
	clear(blocks)
	runtime.GC()
}

//go:noinline
func churnSteadily() {
	random := rand.New(rand.NewSource(7))
	held := make([][]byte, 2048)
	for {
		for range 8 {
			block := make([]byte, 16+random.Intn(1024))
			for at := range block {
				block[at] = 0x22
			}
			held[random.Intn(len(held))] = block
		}
		time.Sleep(10 * time.Millisecond)
	}
}

type pool struct {
	function string
	build    func(bytes int) built
	share    int
	isIdle   bool
	thread   string
	built    built
	bytes    int
	touched  int
}

var pools = []*pool{
	{function: "main.indexBuild", build: indexBuild, share: 96, isIdle: true, thread: "main"},
	{function: "main.(*sessionCache).fill", build: openSessions, share: 40, isIdle: true, thread: "session-filler"},
	{function: "main.imageDecode", build: decodeAll, share: 24, isIdle: false, thread: "any"},
	{function: "main.logRingOpen", build: logRingOpen, share: 56, isIdle: false, thread: "log-writer"},
	{function: "main.metricsTableLoad", build: loadMetrics, share: 32, isIdle: true, thread: "any"},
	{function: "main.undoTreeGrow", build: growTrees, share: 8, isIdle: false, thread: "main"},
}

func touchPages(values []uint64) {
	for at := 0; at < len(values); at += page / 8 {
		values[at]++
	}
}

func heapBytes() int {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

// Anonymous resident memory.
func resident() int {
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		panic(err)
	}
	_, rest, _ := strings.Cut(string(text), "Anonymous:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		panic(err)
	}
	return kib << 10
}

func (pool *pool) buildOnThread(bytes int) {
	switch pool.thread {
	case "main":
		pool.built = pool.build(bytes)
		return
	case "any":
		done := make(chan built)
		go func() { done <- pool.build(bytes) }()
		pool.built = <-done
		return
	}
	done := make(chan built)
	go func() {
		runtime.LockOSThread()
		nameThread(pool.thread)
		done <- pool.build(bytes)
		select {}
	}()
	pool.built = <-done
}

func nameThread(name string) {
	text, err := syscall.BytePtrFromString(name)
	if err != nil {
		panic(err)
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_NAME, uintptr(unsafe.Pointer(text)), 0); errno != 0 {
		panic(errno)
	}
}

func serveRequests(seconds float64) {
	for turns := int(seconds / 0.05); turns > 0; turns-- {
		for _, pool := range pools {
			if !pool.isIdle {
				pool.built.touch()
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func init() {
	runtime.LockOSThread()
}

func main() {
	mib := flag.Int("mib", 256, "all pools together")
	seconds := flag.Float64("seconds", 60, "how long to serve")
	isRecycled := flag.Bool("recycle", false, "build in memory that was used before")
	flag.Parse()
	if *isRecycled {
		churnClose(churnOpen(*mib<<20, rand.New(rand.NewSource(3))))
		go churnSteadily()
	}
	var lines []string
	for _, pool := range pools {
		before, residentBefore := heapBytes(), resident()
		pool.buildOnThread(pool.share * *mib << 20 / whole)
		pool.touched = max(0, resident()-residentBefore)
		pool.bytes = heapBytes() - before
		lines = append(lines, fmt.Sprintf(`{"function":"%s","bytes":%d,"touched":%d,"idle":%t,"thread":"%s"}`,
			pool.function, pool.bytes, pool.touched, pool.isIdle, pool.thread))
	}
	debug.SetGCPercent(-1)
	fmt.Fprintf(os.Stdout, "{\"language\":\"go\",\"pools\":[%s]}\n", strings.Join(lines, ","))
	serveRequests(*seconds)
}
