// SPDX-License-Identifier: Apache-2.0 OR MIT

// Runs the Gateway API's own conformance suite, with its flags.
package gatewayapi

import (
	"testing"

	"sigs.k8s.io/gateway-api/conformance"
)

func TestConformance(t *testing.T) {
	conformance.RunConformance(t)
}
