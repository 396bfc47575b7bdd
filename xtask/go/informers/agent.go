// SPDX-License-Identifier: Apache-2.0 OR MIT

package main

import (
	"context"
	"net"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

const (
	// The default of configSyncPeriod.
	resync = 15 * time.Minute
	// The label of services of another proxy (pkg/proxy/apis/well_known_labels.go).
	labelProxyName = "service.kubernetes.io/service-proxy-name"
	// The objects that tell the number of their last change, by an endpoint's address and by a port
	// (lab/src/fleet/objects.rs).
	markedNamespace = "default"
	markedSlice     = "s0-a"
	markedService   = "s0"
	firstPort       = 10000
)

// agent is the clientset and the informers of one kube-proxy.
type agent struct {
	cancel    context.CancelFunc
	client    *kubernetes.Clientset
	factories []informers.SharedInformerFactory
	// Closed once the goroutine that starts and waits for the informers has ended.
	started chan struct{}
}

// startAgent starts to follow the API server, as newProxyServer and ProxyServer.Run of kube-proxy
// 1.36 do (cmd/kube-proxy/app/server.go).
func startAgent(config *rest.Config, node string, number int, progress *progress) (*agent, error) {
	own := rest.CopyConfig(config)
	// client-go shares the connections of clientsets with equal configurations. A dialer makes them
	// different; this one has client-go's own limits.
	own.Dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	client, err := kubernetes.NewForConfig(own)
	if err != nil {
		return nil, err
	}
	noProxyName, err := labels.NewRequirement(labelProxyName, selection.DoesNotExist, nil)
	if err != nil {
		return nil, err
	}
	noHeadless, err := labels.NewRequirement(v1.IsHeadlessService, selection.DoesNotExist, nil)
	if err != nil {
		return nil, err
	}
	factory := func(tweak func(*metav1.ListOptions)) informers.SharedInformerFactory {
		return informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithTweakListOptions(tweak))
	}
	// pkg/proxy/node.go
	nodes := factory(func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector("metadata.name", node).String()
	})
	others := informers.NewSharedInformerFactoryWithOptions(client, resync)
	slices := factory(func(options *metav1.ListOptions) {
		options.LabelSelector = labels.NewSelector().Add(*noHeadless).String()
	})
	services := factory(func(options *metav1.ListOptions) {
		options.LabelSelector = labels.NewSelector().Add(*noProxyName).String()
		options.FieldSelector = fields.OneTermNotEqualSelector("spec.clusterIP", v1.ClusterIPNone).String()
	})
	ctx, cancel := context.WithCancel(context.Background())
	started := &agent{
		cancel:    cancel,
		client:    client,
		factories: []informers.SharedInformerFactory{nodes, others, slices, services},
		started:   make(chan struct{}),
	}
	go func() {
		defer close(started.started)
		// kube-proxy has its node before it asks for anything else.
		nodeInformer := nodes.Core().V1().Nodes().Informer()
		nodes.Start(ctx.Done())
		if !cache.WaitForCacheSync(ctx.Done(), nodeInformer.HasSynced) {
			return
		}
		look := func(object any) {
			if mark, found := markIn(object); found {
				progress.saw(number, mark)
			}
		}
		synced := []cache.InformerSynced{
			handle(nodeInformer, nothing),
			handle(services.Core().V1().Services().Informer(), look),
			handle(slices.Discovery().V1().EndpointSlices().Informer(), look),
			handle(others.Networking().V1().ServiceCIDRs().Informer(), nothing),
		}
		others.Start(ctx.Done())
		slices.Start(ctx.Done())
		services.Start(ctx.Done())
		if cache.WaitForCacheSync(ctx.Done(), synced...) {
			progress.listed(number)
		}
	}()
	return started, nil
}

// stop ends the informers and their connections.
func (a *agent) stop() {
	a.cancel()
	<-a.started
	for _, factory := range a.factories {
		factory.Shutdown()
	}
	if client, is := a.client.CoreV1().RESTClient().(*rest.RESTClient); is {
		utilnet.CloseIdleConnectionsFor(client.Client.Transport)
	}
}

// handle calls work with every new or changed object, as the config types of pkg/proxy/config do.
func handle(informer cache.SharedIndexInformer, work func(any)) cache.InformerSynced {
	// An error means that the informer has been stopped.
	handler, err := informer.AddEventHandlerWithResyncPeriod(cache.ResourceEventHandlerFuncs{
		AddFunc:    work,
		UpdateFunc: func(_, object any) { work(object) },
	}, resync)
	if err != nil {
		return func() bool { return false }
	}
	return handler.HasSynced
}

func nothing(any) {}

// markIn returns the change that a marked object tells; false if the object is another one.
func markIn(object any) (mark, bool) {
	switch object := object.(type) {
	case *discovery.EndpointSlice:
		if object.Namespace != markedNamespace || object.Name != markedSlice {
			break
		}
		for _, endpoint := range object.Endpoints {
			for _, address := range endpoint.Addresses {
				if number, found := numberOf(address); found {
					return mark{"slice", number}, true
				}
			}
		}
	case *v1.Service:
		if object.Namespace != markedNamespace || object.Name != markedService || len(object.Spec.Ports) == 0 {
			break
		}
		if port := int(object.Spec.Ports[0].Port); port > firstPort {
			return mark{"service", port - firstPort}, true
		}
	}
	return mark{}, false
}
