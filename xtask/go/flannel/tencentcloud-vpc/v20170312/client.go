// SPDX-License-Identifier: Apache-2.0 OR MIT

// Package v20170312 stands for the Tencent Cloud SDK of this name, which not every module proxy
// serves. flannel's backend for that cloud, which nothing here uses, compiles with it; every call
// fails.
package v20170312

import "errors"

var errMissing = errors.New("this flannel was built without the Tencent Cloud SDK")

type Client struct{}

func NewClientWithSecretId(id, key, region string) (*Client, error) { return &Client{}, nil }

type Filter struct {
	Name   *string
	Values []*string
}

type Route struct {
	RouteId              *uint64
	DestinationCidrBlock *string
	GatewayId            *string
	GatewayType          *string
	RouteType            *string
	Enabled              *bool
}

type RouteTable struct {
	RouteTableId *string
	RouteSet     []*Route
}

type DescribeRouteTablesRequest struct{ Filters []*Filter }

type DescribeRouteTablesResponse struct {
	Response struct{ RouteTableSet []*RouteTable }
}

func NewDescribeRouteTablesRequest() *DescribeRouteTablesRequest {
	return &DescribeRouteTablesRequest{}
}

func (c *Client) DescribeRouteTables(*DescribeRouteTablesRequest) (*DescribeRouteTablesResponse, error) {
	return nil, errMissing
}

type DeleteRoutesRequest struct {
	RouteTableId *string
	Routes       []*Route
}

func NewDeleteRoutesRequest() *DeleteRoutesRequest { return &DeleteRoutesRequest{} }

func (c *Client) DeleteRoutes(*DeleteRoutesRequest) (any, error) { return nil, errMissing }

type CreateRoutesRequest struct {
	RouteTableId *string
	Routes       []*Route
}

func NewCreateRoutesRequest() *CreateRoutesRequest { return &CreateRoutesRequest{} }

func (c *Client) CreateRoutes(*CreateRoutesRequest) (any, error) { return nil, errMissing }
