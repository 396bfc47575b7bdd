// SPDX-License-Identifier: Apache-2.0 OR MIT

// Command informers is the part of many kube-proxies that follows the API server: the clientset and
// the informers of each, without a proxier. `cargo xtask bench fleet` compares portolan's source with
// it. lab/src/fleet/lines.rs describes what it reads from standard input and writes to standard output.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	agents := flag.Int("agents", 1, "how many agents this process runs")
	first := flag.Int("first", 0, "the number of the first agent's node")
	flag.Parse()
	if err := run(*kubeconfig, *first, *agents); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run starts all agents, then obeys standard input until it ends.
func run(kubeconfig string, first, count int) error {
	config, err := load(kubeconfig)
	if err != nil {
		return err
	}
	progress := newProgress(count)
	agents := make([]*agent, count)
	start := func(from, to int) error {
		for number := from; number < to; number++ {
			node := fmt.Sprintf("node-%d", first+number)
			if agents[number], err = startAgent(config, node, number, progress); err != nil {
				return err
			}
		}
		return nil
	}
	if err := start(0, count); err != nil {
		return err
	}
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		var from, to int
		if _, err := fmt.Sscanf(commands.Text(), "restart %d %d", &from, &to); err != nil {
			return fmt.Errorf("command %q: %w", commands.Text(), err)
		}
		// All of them end before the first one starts again, as on nodes that have no connection
		// with each other.
		var ended sync.WaitGroup
		for _, old := range agents[from:to] {
			ended.Go(old.stop)
		}
		ended.Wait()
		if err := start(from, to); err != nil {
			return err
		}
	}
	return commands.Err()
}

// load reads a kubeconfig and sets what kube-proxy 1.36 sets by default
// (pkg/proxy/apis/config/v1alpha1/defaults.go, createClient in cmd/kube-proxy/app/server.go).
func load(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
		&clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, err
	}
	config.AcceptContentTypes = ""
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.QPS = 5
	config.Burst = 10
	return config, nil
}

// mark is a change of the marked EndpointSlice or Service.
type mark struct {
	// "slice" or "service".
	subject string
	number  int
}

// progress writes when agents have the whole list, and when all of them have a change.
type progress struct {
	mutex  sync.Mutex
	agents int
	// The last change of each subject that each agent has.
	last []map[string]int
	// How many agents have each change that not all of them have.
	have map[mark]int
}

func newProgress(agents int) *progress {
	last := make([]map[string]int, agents)
	for agent := range last {
		last[agent] = map[string]int{}
	}
	return &progress{agents: agents, last: last, have: map[mark]int{}}
}

func (p *progress) listed(agent int) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	fmt.Printf("listed %d %d\n", agent, time.Now().UnixNano())
}

// saw notes the change that an agent has now. Those in between came with it.
func (p *progress) saw(agent int, seen mark) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for number := p.last[agent][seen.subject] + 1; number <= seen.number; number++ {
		next := mark{seen.subject, number}
		p.last[agent][seen.subject] = number
		p.have[next]++
		if p.have[next] == p.agents {
			delete(p.have, next)
			fmt.Printf("seen %s %d %d\n", next.subject, number, time.Now().UnixNano())
		}
	}
}

// numberOf returns the number of the change that an endpoint's address tells; false if it tells none.
func numberOf(address string) (int, bool) {
	rest, found := strings.CutPrefix(address, "10.250.")
	if !found {
		return 0, false
	}
	var high, low int
	_, err := fmt.Sscanf(rest, "%d.%d", &high, &low)
	return high*256 + low, err == nil
}
